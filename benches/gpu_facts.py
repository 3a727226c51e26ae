"""What the figures of a GPU in the catalogue rest on, measured in half a minute: needs torch alone.

    python benches/gpu_facts.py [--device cuda:0] [--out facts.json]

Rates of products by type, in bursts and in a run of seconds with clock and power beside; fused attention; copies on the card and over
the host's link from both kinds of memory; Adam; a loss over words; what a call costs the host; what the process holds beside tensors.
"""

import argparse
import json
import statistics
import subprocess
import threading
import time

import torch
import torch.nn.functional as F

ANSWER = {}


def note(name, value):
    ANSWER[name] = value
    print(f"{name:44} {value}", flush=True)


def seconds(call, least=0.15):
    """Median seconds of a call on the device, by events round batches of them."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    once = time.perf_counter() - start
    calls = max(1, int(2e-3 / max(once, 1e-5)))
    times = []
    begun = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - begun < least:
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        ends[0].record()
        for _ in range(calls):
            call()
        ends[1].record()
        torch.cuda.synchronize()
        times.append(ends[0].elapsed_time(ends[1]) / 1e3 / calls)
    return statistics.median(times)


def attempt(name, measure):
    try:
        note(name, measure())
    except Exception as error:  # noqa: BLE001
        note(name, f"{type(error).__name__}: {error}"[:160])
    torch.cuda.empty_cache()


def smi(fields):
    done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return done.stdout.strip()


def product(dtype, size, tf32=False):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    rate = 2 * size**3 / seconds(lambda: a @ b) / 1e12
    torch.backends.cuda.matmul.allow_tf32 = False
    return round(rate, 1)


def sustained(length=6.0):
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    states, is_over = [], threading.Event()

    def watch():
        while not is_over.wait(0.5):
            states.append(smi("clocks.sm,power.draw,temperature.gpu"))

    thread = threading.Thread(target=watch)
    thread.start()
    rates, begun = [], time.perf_counter()
    while time.perf_counter() - begun < length:
        start = time.perf_counter()
        for _ in range(200):
            a @ b
        torch.cuda.synchronize()
        rates.append(round(200 * 2 * 8192**3 / (time.perf_counter() - start) / 1e12, 1))
    is_over.set()
    thread.join()
    return {"TFLOP/s": rates[:: max(1, len(rates) // 12)], "clock, power, temperature": states}


def attention(batch, heads, kv_heads, length, width, backward=False):
    made = lambda n: torch.randn(batch, n, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=backward)  # noqa: E731
    q, k, v = made(heads), made(kv_heads), made(kv_heads)
    grouped = {"enable_gqa": True} if heads != kv_heads else {}
    call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)  # noqa: E731
    flops = 4 * batch * heads * length * length * width / 2
    if not backward:
        with torch.no_grad():
            return round(flops / seconds(call) / 1e12, 1)
    out = call()
    ones = torch.ones_like(out)
    return round(2.5 * flops / seconds(lambda: out.backward(ones, retain_graph=True)) / 1e12, 1)


def copies(size, pinned, there):
    host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    host.fill_(1)
    card = torch.empty(size, dtype=torch.uint8, device="cuda")
    to, of = (card, host) if there else (host, card)
    return round(size / seconds(lambda: to.copy_(of, non_blocking=pinned)) / 1e9, 2)


def both_ways(size):
    hosts = [torch.ones(size, dtype=torch.uint8).pin_memory() for _ in range(2)]
    cards = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def call():
        with torch.cuda.stream(streams[0]):
            cards[0].copy_(hosts[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            hosts[1].copy_(cards[1], non_blocking=True)

    call(), torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(8):
        call()
    torch.cuda.synchronize()
    return round(16 * size / (time.perf_counter() - start) / 1e9, 2)


def adam(kind):
    values = [torch.nn.Parameter(torch.zeros(1 << 24, device="cuda")) for _ in range(16)]
    for value in values:
        value.grad = torch.ones_like(value)
    update = torch.optim.Adam(values, **{kind: True})
    return round(28 * 16 * (1 << 24) / seconds(update.step) / 1e12, 3)


def host():
    one = torch.ones(1, device="cuda")
    leaf = torch.ones(1, device="cuda", requires_grad=True)
    module = torch.nn.Linear(8, 8, device="cuda")
    few = torch.ones(8, 8, device="cuda")

    def each(call, n=2000):
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(n // 5):
                call()
            times.append((time.perf_counter() - start) / (n // 5) * 1e6)
            torch.cuda.synchronize()
        return round(statistics.median(times), 2)

    with torch.no_grad():
        plain, linear = each(lambda: one + one), each(lambda: module(few))
    chain = leaf * 1
    for _ in range(200):
        chain = chain * 1
    start = time.perf_counter()
    for _ in range(5):
        chain.backward(retain_graph=True)
    torch.cuda.synchronize()
    back = (time.perf_counter() - start) / 1000 * 1e6
    return {"add, µs": plain, "linear, µs": linear, "recorded linear, µs": each(lambda: module(few)), "one backward, µs": round(back, 2)}


def loss(rows, words, dtype):
    logits = torch.randn(rows, words, device="cuda", dtype=dtype, requires_grad=True)
    target = torch.randint(0, words, (rows,), device="cuda")

    def call():
        F.cross_entropy(logits.float(), target).backward()

    return round(seconds(call) * 1e3, 3)


def beside():
    """Bytes that the process holds and no tensor does, after each library's first call."""
    def held():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return round((total - free - torch.cuda.memory_reserved()) / 2**20)

    torch.ones(1, device="cuda")
    states = {"context": held()}
    torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda")
    states["with cuBLAS"] = held()
    torch.nn.Conv2d(8, 8, 3, device="cuda")(torch.ones(1, 8, 32, 32, device="cuda")).sum().backward()
    states["with cuDNN"] = held()
    return states


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.cuda.set_device(arguments.device)
    about = torch.cuda.get_device_properties(arguments.device)
    note("device", torch.cuda.get_device_name())
    note("software", f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
    note("driver, clocks, power limit", smi("driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit"))
    note("memory, L2, multiprocessors", [about.total_memory, about.L2_cache_size, about.multi_processor_count])
    attempt("MiB beside tensors", beside)
    for size in (1024, 2048, 4096, 8192, 16384):
        attempt(f"bfloat16 product of {size}, TFLOP/s", lambda: product(torch.bfloat16, size))
    attempt("float16 product of 8192, TFLOP/s", lambda: product(torch.float16, 8192))
    attempt("TF32 product of 8192, TFLOP/s", lambda: product(torch.float32, 8192, True))
    attempt("float32 product of 4096, TFLOP/s", lambda: product(torch.float32, 4096))
    for shape in ((8, 12, 12, 1024, 64), (4, 32, 32, 2048, 64), (2, 32, 8, 4096, 128), (1, 32, 8, 16384, 128)):
        attempt(f"causal attention {shape}, TFLOP/s", lambda: attention(*shape))
        attempt(f"its backward, TFLOP/s", lambda: attention(*shape, backward=True))
    card = torch.ones(1 << 28, device="cuda")
    other = torch.empty_like(card)
    note("copy on the card, TB/s", round(2 * 4 * (1 << 28) / seconds(lambda: other.copy_(card)) / 1e12, 3))
    note("fill, TB/s", round(4 * (1 << 28) / seconds(lambda: other.fill_(1)) / 1e12, 3))
    note("sum, TB/s", round(4 * (1 << 28) / seconds(card.sum) / 1e12, 3))
    note("add, TB/s", round(3 * 4 * (1 << 28) / seconds(lambda: torch.add(card, other, out=other)) / 1e12, 3))
    del card, other
    torch.cuda.empty_cache()
    for size in (1 << 20, 1 << 24, 1 << 28):
        for pinned in (False, True):
            what = f"{size >> 20} MiB {'pinned' if pinned else 'pageable'}, GB/s"
            attempt(f"to the card, {what}", lambda: copies(size, pinned, True))
            attempt(f"to the host, {what}", lambda: copies(size, pinned, False))
    attempt("both ways at once, 256 MiB pinned, GB/s", lambda: both_ways(1 << 28))
    attempt("Adam foreach, TB/s of 28 B a parameter", lambda: adam("foreach"))
    attempt("Adam fused, TB/s of 28 B a parameter", lambda: adam("fused"))
    attempt("cross entropy 8192 x 50257 float32, both ways, ms", lambda: loss(8192, 50257, torch.float32))
    attempt("cross entropy 8192 x 50257 bfloat16, both ways, ms", lambda: loss(8192, 50257, torch.bfloat16))
    attempt("host", host)
    attempt("bfloat16 product of 8192 for 6 s", sustained)
    if arguments.out:
        with open(arguments.out, "w") as out:
            json.dump(ANSWER, out, indent=1)


if __name__ == "__main__":
    main()
