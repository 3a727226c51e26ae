"""Weight versions of a stage that is updated while micro-batches are in flight. Needs only torch."""

from contextlib import contextmanager

from torch.multiprocessing.reductions import StorageWeakRef

# After "PipeDream" (2019) and "Memory-Efficient Pipeline-Parallel DNN Training" (2021).
STASHING, VERTICAL_SYNC, TWO_VERSIONS = "stashing", "vertical sync", "2BW"


def rounds_of(replicas):
    """Returns how many micro-batches each replica of a stage has in flight: those of all replicas from there on,
    divided among its own.

    With one replica each that is p, …, 2, 1.
    """
    return [-(-sum(replicas[place:]) // count) for place, count in enumerate(replicas)]


def version_rule(updates, replicas, place, replica, period):
    """Returns a function that gives the version for a micro-batch in the stage at `place`, on one of its replicas.

    A version is the number of the stage's updates before it; micro-batches are counted per replica, `period` is the
    number of all replicas' micro-batches between two updates of 2BW.
    """
    count, rounds = replicas[place], rounds_of(replicas)
    if updates == TWO_VERSIONS:
        return lambda number: max(0, (number * count + replica) // period - 1)
    # With stashing a stage uses its newest weights, with vertical sync those with the first stage's newest number.
    behind = rounds[0] - 1 if updates == VERTICAL_SYNC else rounds[place] - 1
    return lambda number: max(0, number - behind)


class Versions:
    """A stage's weights: a forward pass uses a version, and its backward pass the same one.

    A pass runs on aliases of a version's memory, so none is copied for it. An update that would overwrite a version
    still needed allocates new memory first; old memory is freed with its last pass and last future use. Each update
    checks the number of versions in memory, since too few would be an error that nothing else reveals.
    """

    def __init__(self, module, rule):
        self.rule, self.places = rule, []
        for owner in module.modules():
            named = [(key, p) for key, p in owner._parameters.items() if p is not None and p.requires_grad]
            self.places += [(owner, key, parameter) for key, parameter in named]
        self.parameters = list(dict.fromkeys(parameter for _, _, parameter in self.places))
        self.begin(0)

    def begin(self, count):
        """Starts to count micro-batches, after all in flight have finished; `count` will follow."""
        self.count, self.next, self.done, self.present = count, 0, 0, 0
        self.older, self.on_their_way = {}, {}
        self.most, self.staleness, self.memories = 1, 0, []

    @contextmanager
    def forward(self, number):
        """Runs a forward pass on the version of its micro-batch."""
        version = self.rule(number)
        tensors = [p.data for p in self.parameters] if version == self.present else self.older[version]
        # Views of a parameter share the version counter that autograd checks; views of its data have their own.
        aliases = [tensor.detach().requires_grad_() for tensor in tensors]
        self.on_their_way[number], self.next = (version, aliases), number + 1
        with self.in_place(aliases):
            yield

    @contextmanager
    def backward(self, number):
        """Runs a backward pass, in which blocks may be recomputed, and adds its gradients to the parameters'."""
        version, aliases = self.on_their_way.pop(number)
        with self.in_place(aliases):
            yield
        self.done, self.staleness = self.done + 1, max(self.staleness, self.present - version)
        for parameter, alias in zip(self.parameters, aliases):
            if alias.grad is None:
                continue
            if parameter.grad is None:
                parameter.grad = alias.grad
            else:
                parameter.grad += alias.grad

    @contextmanager
    def in_place(self, aliases):
        alias_of = dict(zip(self.parameters, aliases))
        for owner, key, parameter in self.places:
            owner._parameters[key] = alias_of[parameter]
        try:
            yield
        finally:
            for owner, key, parameter in self.places:
                owner._parameters[key] = parameter

    def needed(self):
        """Returns the versions that passes in flight use, and those that later ones will use."""
        found = {version for version, _ in self.on_their_way.values()}
        if self.next < self.count:
            found |= set(range(self.rule(self.next), min(self.rule(self.count - 1), self.present) + 1))
        return found

    @contextmanager
    def update(self):
        """Updates the parameters in place."""
        needed = self.needed()
        if self.present in needed:
            self.older[self.present] = [parameter.data for parameter in self.parameters]
            for parameter in self.parameters:
                parameter.data = parameter.data.clone()
        self.older = {version: tensors for version, tensors in self.older.items() if version in needed}
        yield
        self.present += 1
        self.look()

    def expected(self):
        """Returns the versions that must exist: the newest, and those of all micro-batches in flight."""
        found = {self.present}
        for number in range(self.done, self.count):
            if self.rule(number) > self.present:
                break
            found.add(self.rule(number))
        return found

    def look(self):
        """Compares the number of versions in memory with the expected number."""
        if not self.parameters:
            return
        expected = self.expected()
        storages = [tensors[0].untyped_storage() for tensors in self.older.values()]
        storages += [aliases[0].untyped_storage() for _, aliases in self.on_their_way.values()]
        storages.append(self.parameters[0].untyped_storage())
        known = {memory.cdata for memory in self.memories}
        self.memories += [StorageWeakRef(storage) for storage in storages if storage._cdata not in known]
        del storages
        self.memories = list({memory.cdata: memory for memory in self.memories if not memory.expired()}.values())
        if len(self.memories) != len(expected):
            raise RuntimeError(f"{len(self.memories)} versions of the weights are in memory, {len(expected)} are needed")
        self.most = max(self.most, len(self.memories))
