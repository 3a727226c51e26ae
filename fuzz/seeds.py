#!/usr/bin/env python3
"""Makes the corpora that the fuzzers start from, out of the committed fixtures.

    python3 fuzz/seeds.py        writes fuzz/corpus/TARGET/seed-*

Nothing but the standard library. What a fuzzer adds to a corpus later is left alone.
"""

import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
# The same archives in the same order as in `fuzz_targets/record.rs`.
ARCHIVES = ["odd_calls", "repeats", "lstm_seq2seq_small"]
MOST_BYTES = 16_000


def write(target, seeds):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("seed-*"):
        old.unlink()
    for index, seed in enumerate(seeds):
        (folder / f"seed-{index:03}").write_bytes(seed)
    print(f"{target}: {len(seeds)} seeds, {sum(map(len, seeds)) / 1e3:.0f} kB")


def records(name):
    """What is read of an archive, by name; tensor data is not."""
    with zipfile.ZipFile(FIXTURES / "traces" / f"{name}.pt") as archive:
        names = [entry for entry in archive.namelist() if "/data/" not in entry and "/constants/" not in entry]
        return [(entry, archive.read(entry)) for entry in sorted(names)]


def texts(*patterns):
    paths = [path for pattern in patterns for path in sorted(FIXTURES.glob(pattern))]
    return [path.read_bytes() for path in paths if path.stat().st_size < MOST_BYTES]


def own(*names):
    return [(HERE / "seeds" / name).read_bytes() for name in names]


def profiles():
    lines = (FIXTURES / "profiles" / "cpu-epyc-1-thread.csv").read_text().splitlines()
    head = [line for line in lines if line.startswith("#")]
    header, *rows = [line for line in lines if not line.startswith("#")]
    csv = "\n".join([*head, header, *rows[:: len(rows) // 8], ""])
    few = "kind,dtype,n,k\nx,float32,1,2\n"
    maps = [path.read_text() for path in sorted((FIXTURES / "maps").glob("*.yaml"))]
    return [text.encode() for text in [csv, *(f"{map}\n---\n{few}" for map in maps)]]


def main():
    read = [(archive, index, *entry) for archive, name in enumerate(ARCHIVES) for index, entry in enumerate(records(name))]
    # A whole archive is read as quickly as its code: weights are not looked at.
    write("archive", [(FIXTURES / "traces" / f"{name}.pt").read_bytes() for name in ARCHIVES[:2]])
    write("record", [bytes([archive, index]) + data for archive, index, _, data in read if len(data) < MOST_BYTES])
    write("pickle", [data for *_, name, data in read if name.endswith(".pkl")])
    write("code", [data for *_, name, data in read if name.endswith(".py")])
    write("ir", texts("ir/*.txt"))
    write("yaml", texts("clusters/*.yaml", "plans/*.yaml", "maps/*.yaml") + own("cost-model.yaml", "devices.yaml") + [b"2xt4,1xh100"])
    write("profile", profiles())
    write("schedule", texts("schedules/*.csv"))
    write("workload", texts("profiles/*.txt") + own("dnn-partitioning.json", "piper.json"))


if __name__ == "__main__":
    main()
