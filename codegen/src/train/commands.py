# -- commands -------------------------------------------------------------------------------------------------------


def train(arguments, manifest):
    backend = "nccl" if arguments.device == "cuda" else "gloo"
    if arguments.device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local)
        arguments.device = f"cuda:{local}"
    if "RANK" not in os.environ:
        sys.exit("start with torchrun, or use --single")
    rank = int(os.environ["RANK"])
    again = f"torchrun … {Path(__file__).name} … --save {arguments.save or 'DIR'} --resume"

    def ended(number, frame):
        print(f"rank {rank}: stopped, because another rank failed; go on from the last checkpoint with: {again}\n", end="", file=sys.stderr, flush=True)  # in one piece: others write too
        os._exit(143)

    signal.signal(signal.SIGTERM, ended)
    dist.init_process_group(backend, timeout=timedelta(seconds=arguments.timeout))
    try:
        run = Run(arguments, manifest)
        if arguments.resume:
            run.resume(arguments.save)
        steps(run, arguments)
    except (RuntimeError, dist.DistError, ConnectionError) as error:
        message = str(error).strip().splitlines()
        lost = re.search(r"[Cc]onnection (closed|reset|refused)|timed? ?out|peer|NCCL|Broken pipe", str(error))
        if lost is None:
            raise
        print(f"rank {rank}: lost a peer ({message[0][:200]}); go on from the last checkpoint with: {again}\n", end="", file=sys.stderr, flush=True)  # in one piece: others write too
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


def steps(run, arguments):
    reporters = run.layout.ranks_of_stage(len(run.manifest["stages"]) - 1)
    leader = reporters[0]
    begun, all_seconds = time.perf_counter(), []
    for step in range(run.start, arguments.steps):
        before = time.perf_counter()
        loss = run.step(step)
        if len(reporters) > 1 and run.rank in reporters:
            total = torch.tensor([loss or 0.0], dtype=torch.float64, device=run.device)
            dist.all_reduce(total, group=run.groups[tuple(reporters)])
            loss = float(total)
        if run.rank == leader:
            samples = run.task.micro_batch * arguments.micro_batches * run.layout.pipelines
            seconds = time.perf_counter() - before
            all_seconds.append(seconds)
            print(f"step {step + 1} loss {loss:.9g} {rated(samples / seconds)} samples/s", flush=True)
        if arguments.crash and (run.rank, step + 1) == arguments.crash:
            os.kill(os.getpid(), signal.SIGKILL)  # for tests
        if arguments.save and ((step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps):
            run.save(arguments.save, step + 1)
    if run.rank == leader:
        done = arguments.steps - run.start
        print(f"{done} steps in {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
        print(beside_prediction(arguments, all_seconds), end="", file=sys.stderr, flush=True)


def rated(rate):
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def told(seconds):
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def beside_prediction(arguments, all_seconds):
    """Says the median step, and what the plan says of one: of other devices, or other work, it says nothing."""
    settled = all_seconds[2:]  # the first ones find their memory
    predicted = DEFAULTS.get("prediction")
    if not settled or not predicted:
        return ""
    text = f"a step took {told(statistics.median(settled))} (median); predicted for {predicted['devices']}"
    text += f" were {told(predicted['seconds'])}"
    if predicted["band"]:
        text += " (p10–p90 {}–{})".format(*map(told, predicted["band"]))
    if arguments.is_changed:
        text += ", run as planned: this was run otherwise"
    return text + "\n"


def single(arguments, manifest):
    """The same steps in one process: the stages one after the other, each micro-batch by itself."""
    task = Task(manifest, arguments)
    stages = [load_stage(about, arguments.form, arguments.device) for about in manifest["stages"]]
    optimizer = task.optimizer(parameters_of(stages))
    replicas = [int(part) for part in str(arguments.replicas).split(",")]
    pipelines = math.lcm(*replicas)
    names = [about["name"] for about in manifest["inputs"]]
    count = arguments.micro_batches * pipelines
    for step in range(arguments.steps):
        seed_step(arguments.seed, step, 0)
        if optimizer:
            optimizer.zero_grad(set_to_none=True)
        samples = task.micro_batch * count
        inputs = moved(dict(zip(names, task.inputs(step, samples))), arguments.device)
        target = moved(task.target(step, samples), arguments.device)
        total = 0.0
        for micro_batch, part in zip(split(inputs, count), split(target, count)):
            known = {f"input:{name}": value for name, value in micro_batch.items()}
            with autocast(arguments):
                for module, about in zip(stages, manifest["stages"]):
                    outputs = module(*[known[port["from"]] for port in about["inputs"]])
                    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
                    for port, value in zip(about["outputs"], outputs):
                        known[f"stage:{about['stage']}:{port['name']}"] = value
                loss = task.loss(outputs, part) / count
            if isinstance(loss, torch.Tensor):
                total += float(loss.detach())
                if loss.requires_grad:
                    loss.backward()
        for tied in manifest["tied"]:
            copies = [dict(stages[h["stage"]].named_parameters(remove_duplicate=False))[h["name"]] for h in tied["holders"]]
            gradients = [copy.grad for copy in copies if copy.grad is not None]
            for copy in copies if gradients else []:
                copy.grad = sum(gradients[1:], gradients[0].clone())
        if optimizer:
            optimizer.step()
        print(f"step {step + 1} loss {total:.9g}", flush=True)
    return stages


def merge(arguments, manifest):
    """Writes the stages' weights as one state dict, from the last checkpoint or from the stages as emitted."""
    state = {}
    source = None
    if arguments.save:
        latest = Path(arguments.save) / "latest"
        if not latest.is_file():
            sys.exit(f"{arguments.save} has no checkpoint")
        source = Path(arguments.save) / latest.read_text().strip()
    for about in manifest["stages"]:
        if source:
            part = torch.load(source / f"stage_{about['stage']}.pt", map_location="cpu", weights_only=True)["model"]
        else:
            part = load_stage(about, arguments.form, "cpu").state_dict()
        for name, value in part.items():
            if name in state and not torch.equal(state[name], value):
                sys.exit(f"the stages disagree on `{name}`")
            state[name] = value.detach().clone()
    path = Path(arguments.merge)
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        beside = path.with_suffix(".part")
        save_file({name: value.contiguous() for name, value in state.items()}, beside, metadata={"format": "pt"})
        os.replace(beside, path)
    else:
        write(path, state)
    print(f"wrote {path}: {len(state)} tensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default=None, help="1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, or a compute-only .csv table")
    parser.add_argument("--pipeline-ranks", type=int, help="ranks of a pipeline; fewer than stages for interleaved schedules")
    parser.add_argument("--replicas", default=DEFAULTS.get("replicas", "1"), help="pipelines side by side; or a number for each rank of a pipeline: 2,1")
    parser.add_argument("--micro-batches", type=int, default=None, help="micro-batches of a pipeline in a step")
    parser.add_argument("--micro-batch-size", type=int, help="samples in a micro-batch; as traced by default")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--task", help="Python file with inputs, target, loss, optimizer")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast, master weights stay as they are")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--form", choices=["python", "torchscript"], help="which form of the stages")
    parser.add_argument("--save", help="folder for checkpoints")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --save, if there is one")
    parser.add_argument("--merge", help="write one state dict (.safetensors or .pt) and end")
    parser.add_argument("--single", action="store_true", help="the same steps in one process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a silent peer is given up")
    parser.add_argument("--crash", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    manifest = json.loads((STAGES / "manifest.json").read_text())
    arguments.crash = tuple(int(part) for part in arguments.crash.split(",")) if arguments.crash else None
    if arguments.resume and not arguments.save:
        sys.exit("--resume needs --save")
    if manifest["skips"] != "relay" and not (arguments.single or arguments.merge):
        sys.exit("torch.distributed.pipelining needs stages that relay skips: emit with --skips relay")
    default = "schedule.csv" if (HERE / "schedule.csv").is_file() else DEFAULTS.get("schedule") or "1F1B"
    arguments.is_changed = (
        arguments.dtype != "fp32"
        or arguments.micro_batch_size is not None
        or arguments.schedule not in (None, default)
        or arguments.replicas != DEFAULTS.get("replicas", "1")
        or arguments.micro_batches not in (None, DEFAULTS.get("micro_batches"))
    )
    arguments.schedule = arguments.schedule or (str(HERE / default) if default.endswith(".csv") else default)
    arguments.csv_ranks = None
    if arguments.schedule.endswith(".csv"):
        arguments.csv_ranks, in_table = read_csv(arguments.schedule)
        if arguments.micro_batches not in (None, in_table):
            sys.exit(f"the schedule table is for {in_table} micro-batches")
        arguments.micro_batches = in_table
    arguments.micro_batches = arguments.micro_batches or DEFAULTS.get("micro_batches") or 2 * len(manifest["stages"])
    if arguments.merge:
        merge(arguments, manifest)
    elif arguments.single:
        single(arguments, manifest)
    else:
        train(arguments, manifest)


if __name__ == "__main__":
    main()
