# -- replicas -------------------------------------------------------------------------------------------------------

BUCKET, FIRST_BUCKET = 25 << 20, 1 << 20  # bytes; the first one is small, so that the network starts early


class Sync:
    """Sums the gradients of a stage's replicas while the backward pass goes on.

    A bucket leaves when the last of its gradients is final: after as many passes as this rank has micro-batches. All
    replicas cut alike, and send in one order, so a bucket waits for those before it. What the passes leave unused goes
    at the end.
    """

    def __init__(self, parameters, group, passes):
        self.group, self.passes = group, passes
        self.buckets = cut(list(reversed(parameters)))
        self.bucket_of = {}
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                self.bucket_of[parameter] = number
                parameter.register_post_accumulate_grad_hook(self.accumulated)
        DEFERRAL.arrived.append(self.arrived)
        self.begin()

    def begin(self):
        self.seen = dict.fromkeys(self.bucket_of, 0)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent = []

    def accumulated(self, parameter):
        if not DEFERRAL.holds(parameter):
            self.arrived(parameter)

    def arrived(self, parameter):
        """Counts a pass that has added all that it adds to a parameter's gradient."""
        if parameter not in self.seen:
            return
        self.seen[parameter] += 1
        if self.seen[parameter] == self.passes:
            self.missing[self.bucket_of[parameter]] -= 1
            while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
                self.send()

    def send(self):
        gradients = []
        for parameter in self.buckets[len(self.sent)]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        # A large gradient is summed where it lies.
        is_alone = len(gradients) == 1 and gradients[0].is_contiguous()
        flat = gradients[0].view(-1) if is_alone else torch.cat([gradient.reshape(-1) for gradient in gradients])
        copied = [] if is_alone else gradients
        self.sent.append((dist.all_reduce(flat, group=self.group, async_op=True), flat, copied))

    def finish(self):
        while len(self.sent) < len(self.buckets):
            self.send()
        for work, flat, copied in self.sent:
            work.wait()
            parts = flat.split([gradient.numel() for gradient in copied]) if copied else ()
            for gradient, part in zip(copied, parts):
                gradient.copy_(part.view_as(gradient))
        self.begin()


def cut(parameters):
    """Cuts parameters into buckets of one type each, closed by the one that fills them."""
    buckets, limit = [], FIRST_BUCKET
    size = 0
    for parameter in parameters:
        if not buckets or size >= limit or buckets[-1][0].dtype != parameter.dtype:
            limit = BUCKET if buckets else FIRST_BUCKET
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return buckets


