# -- commands -------------------------------------------------------------------------------------------------------


def train(arguments, manifest):
    """Runs one rank; what goes wrong ends it with a line, or with a report for whoever started the ranks."""
    rank = int(os.environ["RANK"])
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)  # prints whole schedules
    is_launched = REPORTS in os.environ

    def ended(number, frame):
        print(f"rank {rank}: stopped, because another rank failed; {go_on(arguments)}\n", end="", file=sys.stderr, flush=True)  # in one piece: others write too
        os._exit(143)

    # A handler waits until a collective gives way to Python; our own launcher needs no word.
    signal.signal(signal.SIGTERM, signal.SIG_DFL if is_launched else ended)
    if arguments.device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        need_gpus(local + 1)
        torch.cuda.set_device(local)
        arguments.device = f"cuda:{local}"
    watch = None
    try:
        is_gpu = "cuda" in arguments.device
        if not is_gpu:
            os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")  # with gloo the flight recorder is off
        here = {"device_id": torch.device(arguments.device)} if is_gpu else {}  # or NCCL guesses it by the rank
        dist.init_process_group("nccl" if is_gpu else "gloo", timeout=timedelta(seconds=arguments.timeout), **here)
        arguments.watch = watch = Watch(rank, dist.get_world_size(), arguments.timeout, DOING)
        run = Run(arguments, manifest)
        is_same = True
        if arguments.check:
            is_same = check(run) is not False
        else:
            if arguments.weights:
                run.begin_with(arguments.weights)
            if arguments.resume:
                run.resume(arguments.save)
            steps(run, arguments)
        dist.barrier()
    except SystemExit as error:
        if isinstance(error.code, str) and report(rank, "error", error.code):
            os._exit(1)
        raise
    except Exception as error:
        failed(error, rank, arguments, is_launched, watch)
    dist.destroy_process_group()
    if not is_same:
        report(rank, "error", "the check found differences")
        sys.exit(1)


def need_gpus(ranks):
    """Each rank of a machine has a GPU of its own: NCCL refuses to share one."""
    have = torch.cuda.device_count()
    if ranks > have:
        sys.exit(f"this machine has {have} GPUs for {ranks} ranks, which do not share one: spread them by --nnodes, or --device cpu, or --single")


def go_on(arguments):
    launcher = "python" if REPORTS in os.environ or "RANK" not in os.environ else "torchrun …"
    return f"go on from the last checkpoint with: {launcher} {Path(__file__).name} … --save {arguments.save or 'DIR'} --resume"


def failed(error, rank, arguments, is_launched, watch):
    """Tells what became of a rank, and ends it."""
    text, place = first_line(error), f" in {DOING['pass']}" if DOING["pass"] else ""
    kind, details, silent = "error", None, {}
    if isinstance(error, NotFinite):
        if "saving" in DOING:  # all ranks end here together: what they have begun to write is good
            DOING["saving"].wait()
        kind = "other" if "another rank" in text else "error"
    elif "connectFullMesh" in str(error):  # before anything was waited for
        kind, text = "lost", f"could not connect to another rank ({text[-200:]})"
    elif re.search(r"timed? ?out", str(error), re.IGNORECASE):
        waits = f" in {' and '.join(names[:2])}" if (names := watch.pending if watch else []) else ""
        kind, text = "timeout", f"waited {arguments.timeout:.0f} s for another rank{waits}{place.replace(' in ', ' after ', 1)}"
        silent = watch.silent() if watch else {}
    elif re.search(r"[Cc]onnection (closed|reset|refused)|peer|NCCL|Broken pipe", str(error)):
        kind, text = "lost", f"lost a peer ({text[:200]})"
    else:
        text, details = f"{type(error).__name__}: {text}{place}", error
    if not report(rank, kind, text, details, silent):
        if details:
            traceback.print_exception(details)
        text = ", ".join(filter(None, (text, who(silent))))
        if kind != "other":
            line = f"rank {rank}: {text}; {go_on(arguments)}\n"
            print(line, end="", file=sys.stderr, flush=True)  # in one piece: others write too
    # Whoever waited gives the others time to say so, and a cause comes before what it caused.
    time.sleep({"timeout": 1.2, "lost": 0.5, "other": 1.0}.get(kind, 0.0) if is_launched else 0.0)
    os._exit(1)


def refuse_slices(manifest, arguments):
    """Refuses what does not go with slices that are stepped by themselves, before anything starts."""
    given = {
        "--check": arguments.check,
        "--single": arguments.single,
        "--dtype fp16": arguments.dtype == "fp16",
        "--offload-optimizer": arguments.offload_optimizer,
        f"--clip {arguments.clip}": arguments.clip is not None,
        f"--sharding {arguments.sharding}": arguments.sharding != "none",
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--schedule {arguments.schedule}": bool(arguments.updates) or arguments.copies > 1,
        f"--replicas {arguments.replicas}": len(set(str(arguments.replicas).split(","))) > 1,
        "--form torchscript": any(form_of(about, arguments.form) == "torchscript" for about in manifest["stages"]),
    }
    refuse(given, f"--sync {arguments.sync}", "--sync buckets")
    for tied in manifest["tied"]:
        if tied["requires_grad"] and len({holder["stage"] for holder in tied["holders"]}) > 1:
            names = " and ".join(sorted({f"`{holder['name']}`" for holder in tied["holders"]}))
            sys.exit(f"{names} are one parameter of several stages, whose gradients are summed after those of replicas: --sync buckets")


def refuse_collective(arguments):
    """Refuses what does not go with sums of gradients that are no all-reduce of the backend, before anything starts."""
    given = {
        f"--sync {arguments.sync}": arguments.sync != "buckets",
        f"--sharding {arguments.sharding}": arguments.sharding != "none",
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--schedule {Path(arguments.schedule).name}": bool(arguments.updates) or arguments.copies > 1,
    }
    refuse(given, f"--collective {arguments.collective}", "--collective fastest")


def refuse_norms(manifest, arguments):
    """Refuses what does not go with batch norms over replicas, before anything starts."""
    given = {
        "--check": arguments.check,
        "--single": arguments.single,
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--schedule {Path(arguments.schedule).name}": bool(arguments.updates) or arguments.copies > 1,
        f"--replicas {arguments.replicas}": len(set(str(arguments.replicas).split(","))) > 1,
        "--form torchscript": any(form_of(about, arguments.form) == "torchscript" for about in manifest["stages"]),
    }
    refuse(given, "--batch-norm sync", "--batch-norm average")


def steps(run, arguments):
    leader = run.leader
    if run.start >= arguments.steps:
        if run.rank == leader:
            print(f"nothing to do: the checkpoint is from after step {run.start}, --steps is {arguments.steps}", file=sys.stderr)
        return
    planned = DEFAULTS.get("planned")
    if planned and run.rank == leader:
        print(
            f"note: the plan is for {planned}, which keeps several versions of the weights and never drains; "
            f"this script runs {Path(arguments.schedule).name} and drains after each step: gradients are exact, times are not those of the plan",
            file=sys.stderr,
            flush=True,
        )
    if run.task.rule and run.rank == leader:
        print(f"learning rate: {run.task.rule}", file=sys.stderr, flush=True)
    samples = run.task.micro_batch * arguments.micro_batches * run.layout.pipelines
    slow = Stragglers(run.layout.peers(), arguments.straggler)
    progress = Progress(run.task, arguments, samples, run.start, slow) if run.rank == leader else None
    peak = run.peak()
    hangs, last = hangs_file(run.rank), {}

    def begin():
        arguments.watch.begin()
        if hangs:
            faulthandler.dump_traceback_later(arguments.timeout, file=hangs)

    def tell(step, loss, known):
        if len(run.reporters) > 1 and run.rank in run.reporters:
            total = torch.tensor([loss or 0.0], dtype=torch.float64, device=run.device)
            dist.all_reduce(total, group=run.groups[tuple(run.reporters)])
            loss = float(total)
        if progress:
            if peak and run.operations:  # there and back: thrice the forward pass
                progress.share = 3 * run.operations * arguments.micro_batches * run.layout.pipelines / peak
            progress.tell(step + 1, {"loss": loss} | known)
        if arguments.crash and (run.rank, step + 1) == arguments.crash:
            os.kill(os.getpid(), signal.SIGKILL)  # for tests
        last.update(known)
        PROFILE.follow(step + 1)
        begin()

    begin()
    if arguments.profile:
        PROFILE.begin(arguments.profile, run.start, arguments.steps, run.rank, run.device)
    for first, step in stops(run, arguments):
        if run.without_flush:
            run.without_flush.steps(first, step + 1, tell)
        else:
            with arguments.trace.timed("step"):
                loss, known = run.step(step)
            arguments.trace.end_step()
            tell(step, loss, known)
        if run.validation and ((step + 1) % arguments.validate_every == 0 or step + 1 == arguments.steps):
            run.drain()
            run.average_norms()
            DOING["pass"] = f"the validation after step {step + 1}"
            values, count = run.validation.all()
            BUSY.begin_step()
            if progress:
                progress.tell_validation(step + 1, values, count)
        if arguments.save and ((step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps):
            DOING["pass"] = f"the checkpoint after step {step + 1}"
            run.save(step + 1)
            DOING["saving"] = run.checkpoints
    if run.checkpoints:
        run.checkpoints.wait()
    sliced = about_slices(run) if run.sends_slices else None
    faulthandler.cancel_dump_traceback_later()
    versions, count = None, 1
    if run.layout.copies > 1:
        versions = run.executor.told()
    if run.without_flush:
        versions = run.without_flush.told()
        if run.offload.mode != "none":  # of all steps: no moment between two of them is one of all ranks
            last["offload"], count = run.offloaded(), arguments.steps - run.start
    host, stragglers = about_host(run) if arguments.host_trace else None, found_slow(run, slow)
    profiled = PROFILE.write(run.manifest["model"]["name"], run.rank == leader) if arguments.profile else None
    gathered = about_gathered(run) if arguments.sharding == "zero3" else None
    kept = about_kept(run) if arguments.offload_optimizer else None
    if progress:
        done = arguments.steps - run.start
        if stragglers:
            print(f"{about_slow(stragglers)}, in all steps", file=sys.stderr, flush=True)
        if host:
            progress.write({"step": arguments.steps, "host": host[1]})
            print(host[0], file=sys.stderr, flush=True)
        for text in filter(None, (gathered, kept, profiled)):
            print(text, file=sys.stderr, flush=True)
        if sliced:
            print(sliced, file=sys.stderr, flush=True)
        if versions:
            print(versions, file=sys.stderr, flush=True)
        if "offload" in last:
            print(about_offload(arguments, last["offload"], count), file=sys.stderr, flush=True)
        print(f"{done} steps in {time.perf_counter() - progress.begun:.1f} s", file=sys.stderr, flush=True)
        print(beside_prediction(arguments, progress.seconds, host and host[1]), end="", file=sys.stderr, flush=True)


def stops(run, arguments):
    """Yields first and last step of what runs without a stop: one step, or without a flush those up to a checkpoint or validation."""
    first = run.start
    while first < arguments.steps:
        step = first
        while run.without_flush and not (
            step + 1 == arguments.steps
            or (arguments.save and (step + 1) % arguments.save_every == 0)
            or (run.validation and (step + 1) % arguments.validate_every == 0)
        ):
            step += 1
        yield first, step
        first = step + 1


class Progress:
    """Tells each step: a line for people, one of JSON in `--log`, the task's own `log`."""

    def __init__(self, task, arguments, samples, start, slow=None):
        self.task, self.arguments, self.samples, self.slow = task, arguments, samples, slow
        self.begun, self.seconds = time.perf_counter(), []
        self.before, self.tokens, self.share = self.begun, tokens_of(task.manifest), None  # seconds of a step at the devices' peak
        self.file = open(arguments.log, "a" if start else "w") if arguments.log else None

    def tell(self, step, known):
        now = time.perf_counter()
        self.seconds.append(now - self.before)
        self.before = now
        rate = self.samples / self.seconds[-1]
        busy = known.pop("busy", None)
        slow = self.slow.take(busy) if self.slow and busy else {}
        left = (self.arguments.steps - step) * statistics.median(self.seconds[-20:])
        rates = {"samples_per_second": rate} | ({"tokens_per_second": self.tokens * rate} if self.tokens else {})
        rates |= {"mfu": self.share / self.seconds[-1]} if self.share else {}
        text = f"step {step} loss {known['loss']:.9g} {rated(rate)} samples/s"
        text += f", {rated(rates['tokens_per_second'])} tokens/s" if self.tokens else ""
        text += f", MFU {100 * rates['mfu']:.3g} %" if self.share else ""
        text += f", norm {known['norm']:.4g}" if known["norm"] is not None else ""
        text += f", lr {known['lr']:.4g}" if known["lr"] is not None else ""
        text += f", scale {known['scale']:.4g}" if "scale" in known else ""
        text += ", left out: a gradient is not finite" if known.get("left_out") else ""
        text += f", {known['memory'] / 2**20:.0f} MiB, {lasting(left)} left"
        print(", ".join(filter(None, (text, about_slow(slow)))), flush=True)
        known |= {"slow": in_json(slow)} if slow else {}
        self.write({"step": step} | known | {"seconds": self.seconds[-1]} | rates)

    def tell_validation(self, step, values, samples):
        text = ", ".join(f"{name} {value:.6g}" for name, value in values.items()) if values else "no batch"
        print(f"validation after step {step}: {text} ({samples} samples)", flush=True)
        self.write({"step": step, "validation": values, "samples": samples})
        self.before = time.perf_counter()

    def write(self, values):
        if self.file:
            self.file.write(json.dumps(values) + "\n")
            self.file.flush()
        if hasattr(self.task.file, "log"):
            self.task.file.log(values["step"], values)


def lasting(seconds):
    hours, minutes = int(seconds // 3600), int(seconds % 3600 // 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


def rated(rate):
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def told(seconds):
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def beside_prediction(arguments, all_seconds, host=None):
    """Says the median step, and what the plan says of one: of other devices, or other work, it says nothing.

    `host` is what the script costs, where that was measured; the simulator has said what it makes of the step.
    """
    settled = all_seconds[2:]  # the first ones find their memory
    predicted = DEFAULTS.get("prediction")
    if not settled or not predicted:
        return ""
    text = f"a step took {told(statistics.median(settled))} (median)"
    if not is_on(predicted, arguments.device):
        return f"{text}; the plan predicts for {predicted['devices']}, which this is not\n"
    if DEFAULTS.get("planned"):
        return f"{text}; the plan predicts for {DEFAULTS['planned']}, which this is not\n"
    text += f"; predicted for {predicted['devices']} were"
    text += f" {told(predicted['seconds'])}"
    if predicted["band"]:
        text += " (p10–p90 {}–{})".format(*map(told, predicted["band"]))
    if host and (more := under(predicted.get("host"), host["pass"])):
        text += f", and {told(predicted['seconds'] + more + host['step'])} with what the script costs the host"
    if arguments.is_changed:
        text += ", run as planned: this was run otherwise"
    return text + "\n"


def under(known, seconds):
    """Returns how much longer a step is where the host takes so many seconds more for each pass, between the nearest that are known."""
    for (low, short), (high, long) in zip(known or (), (known or ())[1:]):
        if low <= seconds <= high:
            return short + (long - short) * (seconds - low) / (high - low) - known[0][1]
    return None


def about_offload(arguments, known, count):
    """Says what a step has moved, on all ranks together; `known` is of the last one, or of so many."""
    what = "the plan's blocks" if arguments.offloads_blocks else "whole stages"
    text = f"offload ({arguments.offload}, {what}) moved {sized(known['to_host'] / count)} to the host in a step"
    text += f" and {sized(known['to_device'] / count)} back, copies took {told(known['seconds_to_host'] / count)} and"
    text += f" {told(known['seconds_to_device'] / count)}; the host held {sized(known['host_bytes'])}"
    return text + f", {known['buffers']} buffers were made in all, {known['in_use']} are in use"


def found_slow(run, slow):
    """Finds ranks that were slow in most of the last steps, beside those that hold the same stages; all ranks call this."""
    own = torch.tensor(BUSY.steps, dtype=torch.float64, device=run.device)
    if len(own) < WINDOW:
        return {}
    found = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return {rank: about for rank, about in slow.found(list(zip(*(each.tolist() for each in found)))).items() if about[2]}


def in_json(slow):
    return [{"rank": rank, "seconds": own, "usual": usual, "of": "others" if others else "before"} for rank, (own, usual, others) in slow.items()]


def about_kept(run):
    """Says what the optimizer keeps on the host, on all ranks, and what that takes on the slowest one; all ranks call this."""
    found = torch.tensor(run.update.host.figures() if run.update.host else [0.0] * 5, dtype=torch.float64, device=run.device)
    most = found.clone()
    dist.all_reduce(found)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    kept, moved = map(sized, found[:2].tolist())
    there, update, back = map(told, most[2:].tolist())
    text = f"the optimizer's state, {kept} on all ranks, is in host memory; a step moved {moved} of gradients there and as much of parameters back,"
    return text + f" copies took {there} and {back}, the update {update}, on the ranks where they took longest"


def about_host(run):
    """Says what this script costs the host, on the rank where passes cost most; all ranks call this."""
    own = torch.tensor(run.arguments.trace.figures(), dtype=torch.float64, device=run.device)
    found = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    a_pass, stage, step, passes = max((each.tolist() for each in found))
    text = f"train.py itself took {told(a_pass)} of the host's time a pass, beside {told(stage)} in the stage ({passes:g} passes a step),"
    text += f" and {told(step)} a step for data, sums and the update; the plan's prediction counts none of it,"
    text += f" `model-analyze simulate plan.yaml --host-overhead {1e6 * a_pass:.0f}` counts that of passes"
    return text, {"pass": a_pass, "stage": stage, "step": step, "passes": passes}


def about_slices(run):
    """Ends what sends slices; says what a step of them was like on this rank, and whether their order paid."""
    run.sync.close()
    figures, name = run.sync.figures(), run.arguments.sync
    if not figures:
        return f"{name}: too few steps to say what slices did"
    count, overtook, waited, least = figures
    text = f"{name}: {count:g} slices a step, {overtook:g} overtook others; passes waited {told(waited)} a step for them,"
    text += f" and {told(least)} had they been sent as they came, without choosing"
    return text + ("" if name != "p3" or waited < 0.98 * least else "; it does not pay here: --sync buckets")


def about_gathered(run):
    """Says how much of the parameters was gathered at a time, on the rank that had the most of it; all ranks call this."""
    found = torch.tensor(run.sync.figures() if run.is_fully_shared else (0, 0, 0), dtype=torch.float64, device=run.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    most, two, whole = map(sized, found.tolist())
    return f"zero3 held {most} of gathered parameters at a time at most; two of the largest block are {two}, a rank's stages have {whole}"


def sized(count):
    return f"{count / 2**10:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


VENDORS = ("nvidia", "tesla", "geforce", "amd", "instinct", "intel")


def is_on(predicted, device):
    """Tells whether a plan's devices may be those that this runs on, by their names."""
    if torch.device(device).type == "cpu":
        return all(kind.split(" × ")[-1].upper().startswith("CPU") for kind in predicted["devices"].split(" + "))
    words = re.split(r"[^a-z0-9]+", torch.cuda.get_device_name(device).lower())
    return "".join(word for word in words if word not in VENDORS) in predicted["names"]


def single(arguments, manifest):
    """The same steps in one process: the stages one after the other, each micro-batch by itself."""
    task = Task(manifest, arguments)
    stages = [load_stage(about, arguments.form, arguments.device) for about in manifest["stages"]]
    update, replicas = Update(task, dict(enumerate(stages)), is_scaled=is_scaled(arguments)), replicas_of(arguments)
    batches = [Batches(task, replica, replicas, arguments.micro_batches) for replica in range(replicas)]
    progress = Progress(task, arguments, task.micro_batch * arguments.micro_batches * replicas, 0)
    for step in range(arguments.steps):
        seed_step(arguments.seed, step, 0)
        update.zero_grad()
        loss = chained(arguments, manifest, task, stages, whole_batch(batches, step, arguments.device), update.scale)
        loaders = [each.loader for each in batches if each.loader]
        try:
            known, ended = update.apply(step, loss, any(each.has_ended for each in loaders), torch.device(arguments.device))
        except NotFinite as error:
            sys.exit(str(error))
        for loader in loaders if ended else ():
            loader.begin(loader.epoch + 1)
        progress.tell(step + 1, {"loss": loss} | known)
    return stages


def replicas_of(arguments):
    return math.lcm(*(int(part) for part in str(arguments.replicas).split(","))) * getattr(arguments, "copies", 1)


def chained(arguments, manifest, task, stages, batch, scale):
    """Leaves the gradients of a step in the stages, by one backward pass through all of them; returns the loss."""
    total, count = 0.0, len(batch[0])
    for number, (micro_batch, part) in enumerate(zip(*batch)):
        known = {f"input:{name}": value for name, value in micro_batch.items()}
        with autocast(arguments):
            for module, about in zip(stages, manifest["stages"]):
                if arguments.check:
                    seed_pass(arguments, about["stage"], number)
                outputs = module(*[known[port["from"]] for port in about["inputs"]])
                outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
                for port, value in zip(about["outputs"], outputs):
                    known[f"stage:{about['stage']}:{port['name']}"] = value
            loss = task.loss(outputs, part) / count
        if isinstance(loss, torch.Tensor):
            total += float(loss.detach())
            if loss.requires_grad:
                scale.up(loss).backward()
    for tied in manifest["tied"]:
        copies = [dict(stages[h["stage"]].named_parameters(remove_duplicate=False))[h["name"]] for h in tied["holders"]]
        gradients = [copy.grad for copy in copies if copy.grad is not None]
        for copy in copies if gradients else []:
            copy.grad = sum(gradients[1:], gradients[0].clone())
    return total


def merge(arguments, manifest):
    """Writes the stages' weights as one state dict, from the last checkpoint or from the stages as emitted."""
    if arguments.save:
        source = last_checkpoint(arguments.save)
        if source is None:
            sys.exit(f"{arguments.save} has no checkpoint")
        state = model_in(source)
    else:
        state = {}
        for about in manifest["stages"]:
            for name, value in load_stage(about, arguments.form, "cpu").state_dict().items():
                if name in state and not torch.equal(state[name], value):
                    sys.exit(f"the stages disagree on `{name}`")
                state[name] = value.detach().clone()
    path = Path(arguments.merge)
    if arguments.like:
        state = save_pretrained(state, path, Path(arguments.like))
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        beside = path.with_suffix(".part")
        save_file({name: value.contiguous() for name, value in state.items()}, beside, metadata={"format": "pt"})
        os.replace(beside, path)
    else:
        write(path, state)
    print(f"wrote {path}: {len(state)} tensors")


def counted(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def positive(text):
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default=None, help="1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, or a compute-only .csv table; PipeDream (an update after each micro-batch) and PipeDream-2BW (one a step) never drain and keep versions of the weights; a table with twice the stages runs two copies of the model in opposite directions")
    parser.add_argument("--vertical-sync", action="store_true", help="under PipeDream all stages take weights of the same number of updates")
    parser.add_argument("--pipeline-ranks", type=counted, help="ranks of a pipeline; fewer than stages for interleaved schedules")
    parser.add_argument("--replicas", default=DEFAULTS.get("replicas", "1"), help="pipelines side by side, or pairs of two copies; or a number for each rank of a pipeline: 2,1")
    parser.add_argument("--shards", type=counted, help="ranks that hold each stage together, where stages are cut inside their operators; 1 runs them whole")
    parser.add_argument("--micro-batches", type=counted, default=None, help="micro-batches of a pipeline in a step, of each of two copies")
    parser.add_argument("--micro-batch-size", type=counted, help="samples in a micro-batch; the plan's by default, or as traced")
    parser.add_argument("--steps", type=counted, default=10)
    parser.add_argument("--task", help="Python file with what is trained on, see above")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--clip", type=positive, help="largest norm of all gradients together; before `clip` of the task")
    parser.add_argument("--sharding", choices=["none", "zero1", "zero2", "zero3"], default=None, help="what the replicas of a stage share out: zero1 the optimizer's state, zero2 gradients, too, zero3 parameters, too, gathered by block")
    parser.add_argument("--sharding-group", type=int, default=None, help="so many replicas of a stage, neighbours, share out together, and each such group has all: 8 on nodes of 8 GPUs keeps traffic inside nodes but for one sum of slices a step; 0 for all replicas together")
    parser.add_argument("--sync", choices=["buckets", "fifo", "p3"], help="how replicas sum gradients: in buckets, and then all are stepped; in slices that are summed and stepped by themselves, as they come (fifo) or those first that the next forward pass asks for first (p3)")
    parser.add_argument("--batch-norm", choices=HOW, default="local", help="statistics of batch norms where stages have replicas: each replica's own (local); those, averaged for checkpoints and validations (average); those of a micro-batch on all replicas, two sums a norm and pass (sync)")
    parser.add_argument("--collective", choices=["fastest", "hierarchical", "parameter-server"], help="how replicas sum a bucket: as the backend does it (fastest); inside machines, slices of it across, and inside again (hierarchical); on one of them, in turn, which steps its parameters and sends them back (parameter-server)")
    parser.add_argument("--slice", type=counted, default=DEFAULTS.get("slice") or SLICE, help="bytes of a slice at most")
    parser.add_argument("--offload", choices=MODES, help="activations wait in host memory for the backward pass: naive copies, pinned through page-locked buffers, non-blocking on streams of their own, both; of the blocks that the plan lists, or else of whole stages")
    parser.add_argument("--offload-floor", type=counted, default=FLOOR, help="bytes; what is smaller stays")
    parser.add_argument("--offload-optimizer", action="store_true", help="the optimizer's state stays in host memory and parameters are stepped there: with Adam a rank's device saves 8 bytes for each float32 parameter that it steps, and a step moves 4 to the host and 4 back")
    parser.add_argument("--log", help="file for a line of JSON each step")
    parser.add_argument("--straggler", type=positive, default=1.2, help="a rank is called slow that takes so many times as long in its passes as the others of its stage, or than it took before, in 8 of 10 steps")
    parser.add_argument("--host-trace", action="store_true", help="say at the end what the script itself costs the host for each pass, and put it into --log")
    parser.add_argument("--profile", metavar="FOLDER", help="after three steps, write when each rank ran which pass of a step (timeline.json, for `model-analyze report --measured`), and what torch's profiler sees in the next one (rank_N.json, for ui.perfetto.dev)")
    parser.add_argument("--validate-every", type=counted, default=100, help="steps between validations, where the task has some; the last step has one, too")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32", help="bf16, fp16: autocast, master weights stay as they are; under fp16 losses are scaled, and steps whose gradients are not finite are left out")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--form", choices=["python", "torchscript"], help="which form of the stages")
    parser.add_argument("--save", help="folder for checkpoints")
    parser.add_argument("--save-every", type=counted, default=100)
    parser.add_argument("--keep", type=counted, help="how many checkpoints stay; all of them by default")
    parser.add_argument("--from", dest="weights", help="begin with these weights (.safetensors, .pt, a folder of checkpoints), by their names in the model")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --save, if there is one")
    parser.add_argument("--merge", help="write one state dict (.safetensors or .pt; with --like a folder of transformers) and end")
    parser.add_argument("--like", help="with --merge: a folder of save_pretrained, whose configuration, tokenizer and names of weights the new one has")
    parser.add_argument("--single", action="store_true", help="the same steps in one process")
    parser.add_argument("--check", action="store_true", help="one step under the schedule beside one process: losses and all gradients")
    parser.add_argument("--allow-eval", action="store_true", help="train stages of a model that was traced in eval mode: no dropout, batch norms as they are")
    parser.add_argument("--allow-changes", action="store_true", help="run files of this folder that were changed after they were written")
    parser.add_argument("--any-torch", action="store_true", help="run with another torch than 2.11")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a silent peer is given up")
    parser.add_argument("--nnodes", type=counted, default=1, help="machines; start the script on each")
    parser.add_argument("--rdzv-endpoint", help="where machines meet: the first one's name and a port")
    parser.add_argument("--max-restarts", type=int, default=0, help="how often all ranks are started again when one fails; with --save and --resume")
    parser.add_argument("--crash", help=argparse.SUPPRESS)
    return parser


def main():
    arguments = options().parse_args()
    if not torch.__version__.startswith("2.11.") and not arguments.any_torch:
        sys.exit(f"this script was written for torch 2.11, here is {torch.__version__}: install 2.11, or try --any-torch")
    manifest = read_manifest(arguments)
    if not (manifest["training"] or arguments.allow_eval or arguments.merge or arguments.check):
        sys.exit(
            "the model was traced in eval mode, so dropout is off and batch norms keep their statistics: trace it with "
            "`model-analyze trace --train` and emit again, or train these stages as they are with --allow-eval"
        )
    arguments.crash = tuple(int(part) for part in arguments.crash.split(",")) if arguments.crash else None
    if arguments.like and not arguments.merge:
        sys.exit("--like goes with --merge FOLDER")
    if arguments.resume and not arguments.save:
        sys.exit("--resume needs --save")
    if manifest["skips"] != "relay" and not (arguments.single or arguments.merge):
        sys.exit("torch.distributed.pipelining needs stages that relay skips: emit with --skips relay")
    default = "schedule.csv" if (HERE / "schedule.csv").is_file() else DEFAULTS.get("schedule") or "1F1B"
    if default in WITHOUT_FLUSH.values() and arguments.schedule is None:
        if arguments.check or arguments.single:
            if os.environ.get("RANK", "0") == "0":
                print(f"note: the plan is for {default}, whose steps are no steps of one process: these are those of 1F1B", file=sys.stderr)
            default = "1F1B"
        else:
            arguments.vertical_sync = arguments.vertical_sync or DEFAULTS.get("vertical_sync", False)
    arguments.is_changed = (
        arguments.dtype != "fp32"
        or arguments.micro_batch_size not in (None, DEFAULTS.get("micro_batch_size"))
        or arguments.schedule not in (None, default)
        or arguments.replicas != DEFAULTS.get("replicas", "1")
        or arguments.shards not in (None, manifest.get("shards") or 1)
        or arguments.sharding not in (None, DEFAULTS.get("sharding") or "none")
        or arguments.sharding_group not in (None, DEFAULTS.get("sharding_group") or 0)
        or arguments.collective not in (None, DEFAULTS.get("collective") or "fastest")
        or arguments.sync not in (None, DEFAULTS.get("sync") or "buckets")
        or arguments.offload not in (None, DEFAULTS.get("offload") or "none")
        or arguments.offload_optimizer
        or arguments.micro_batches not in (None, DEFAULTS.get("micro_batches"))
    )
    arguments.micro_batch_size = arguments.micro_batch_size or DEFAULTS.get("micro_batch_size")
    arguments.schedule = arguments.schedule or (str(HERE / default) if default.endswith(".csv") else default)
    arguments.updates = updates_of(arguments)
    arguments.shards = arguments.shards or manifest.get("shards") or 1
    arguments.sharding = arguments.sharding or DEFAULTS.get("sharding") or "none"
    if arguments.sharding_group and (arguments.sharding == "none" or arguments.sharding_group < 0):
        sys.exit(f"--sharding-group {arguments.sharding_group} is a number of replicas that share something out: with --sharding zero1, zero2 or zero3")
    arguments.asks_group = arguments.sharding_group is not None
    if not arguments.asks_group and arguments.sharding != "none":
        arguments.sharding_group = DEFAULTS.get("sharding_group")
    is_asked = arguments.sync is not None
    arguments.sync = arguments.sync or DEFAULTS.get("sync") or "buckets"
    if (arguments.check or arguments.single) and not is_asked:
        arguments.sync = "buckets"
    arguments.offload = arguments.offload or DEFAULTS.get("offload") or "none"
    arguments.offloads_blocks = any(about.get("offload") for about in manifest["stages"])
    arguments.csv_ranks, arguments.csv_is_split, arguments.copies = None, False, 1
    if re.sub(r"[^a-z]", "", arguments.schedule.lower()) in TWO_WAY:
        how = f"`model-analyze simulate --schedule {arguments.schedule} --ranks {len(manifest['stages'])} --micro-batches 8 --write-csv order.csv`"
        sys.exit(f"{arguments.schedule} runs two copies of the model by a table: write one with {how}, then --schedule order.csv")
    if arguments.schedule.endswith(".csv"):
        arguments.passes = read_csv(arguments.schedule)
        arguments.csv_ranks = [sorted({stage for _, stage, _ in row}) for row in arguments.passes]
        arguments.csv_is_split = any(letter in "IW" for row in arguments.passes for letter, _, _ in row)
        in_table = max((number + 1 for row in arguments.passes for _, _, number in row), default=0)
        if not arguments.merge:
            arguments.copies = copies_in(arguments, len(manifest["stages"]))
        if arguments.single and arguments.micro_batches:
            in_table = arguments.micro_batches  # in one process there is no schedule
        if arguments.micro_batches not in (None, in_table):
            sys.exit(f"the schedule table is for {in_table} micro-batches" + " of each copy" * (arguments.copies > 1))
        arguments.micro_batches = in_table
    arguments.micro_batches = arguments.micro_batches or DEFAULTS.get("micro_batches") or 2 * len(manifest["stages"])
    if arguments.updates and not arguments.merge:
        refuse_without_flush(manifest, arguments)
    if arguments.sync != "buckets" and not arguments.merge:
        refuse_slices(manifest, arguments)
        if replicas_of(arguments) == 1:  # which send nothing
            arguments.sync = "buckets"
    if arguments.batch_norm == "sync" and not arguments.merge:
        refuse_norms(manifest, arguments)
    arguments.collective = arguments.collective or DEFAULTS.get("collective") or "fastest"
    if arguments.collective != "fastest" and not (arguments.merge or arguments.single):
        refuse_collective(arguments)
    arguments.trace = HostTrace(arguments.host_trace)
    if arguments.merge:
        merge(arguments, manifest)
    elif arguments.single:
        single(arguments, manifest)
    elif "RANK" in os.environ:
        train(arguments, manifest)
    else:
        world = Layout(manifest, arguments, arguments.schedule.lower()).world
        if arguments.task:
            find_task(arguments.task)
        if arguments.device == "cuda":
            need_gpus(world // arguments.nnodes)
        launch(__file__, world, arguments.nnodes, arguments.rdzv_endpoint, arguments.max_restarts, go_on(arguments))


if __name__ == "__main__":
    main()
