#!/usr/bin/env python3
"""Runs test programs side by side: as many tests at once as there are cores, and one more, for many wait for processes.

    SIDE_BY_SIDE=FOLDER cargo test --config "target.'cfg(all())'.runner='…/side_by_side.py'"
    side_by_side.py FOLDER [--no-fail-fast]

`cargo test` runs its programs one after the other, and each ends with one long test. As cargo's runner this only notes a program
in the folder, with its place and environment; with the folder it runs them and prints what each printed, once it has ended.

By hand, for cargo-nextest would have to be built on a bare machine first, and starts a process for each test, where tests of a
program share what they trace.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What takes longest begins first.
LONGEST = (
    "torchrun", "sharded", "exported", "interrupted", "operators", "readme", "hostile", "verify", "split", "plan", "partitioner", "smooth",
    "trace_inputs", "piper", "exports", "package", "trace", "compare", "weights", "random_cuts", "report", "folder", "benches",
)
# Whoever measures times has the machine alone.
MEASURES = ("profile", "libtorch", "memory")


def note(program, *arguments):
    """Notes a program of tests; examples of the documentation run at once."""
    folder = os.environ["SIDE_BY_SIDE"]
    if Path(program).parent.name != "deps":
        os.execv(program, [program, *arguments])
    about = {"program": [program, *arguments], "place": os.getcwd(), "environment": dict(os.environ)}
    Path(folder, f"{len(os.listdir(folder)):04}.json").write_text(json.dumps(about))


class Program:
    def __init__(self, about):
        self.about, self.name = about, Path(about["program"][0]).name.rsplit("-", 1)[0]

    def count(self):
        """Returns the number of its tests; a harness of its own, or one that cannot tell, is one."""
        if self.name in MEASURES:
            return 1
        listed = subprocess.run([*self.about["program"], "--list", "--format", "terse"], cwd=self.about["place"], env=self.about["environment"], capture_output=True, text=True)
        return listed.stdout.count(": test\n") if listed.returncode == 0 else 1

    def start(self, threads):
        self.threads, self.output, self.begun = threads, tempfile.TemporaryFile(), time.monotonic()
        environment = {"RUST_TEST_THREADS": str(threads), **self.about["environment"]}
        self.process = subprocess.Popen(self.about["program"], cwd=self.about["place"], env=environment, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT)
        return self

    def ended(self, pid, status, used):
        """Prints what it printed; returns whether it passed."""
        self.process.returncode = code = os.waitstatus_to_exitcode(status)
        seconds = f"{time.monotonic() - self.begun:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of a processor"
        self.output.seek(0)
        print(f"     Ran {self.name} of {self.about['place']} in {seconds}", flush=True)
        sys.stdout.buffer.write(self.output.read())
        if code:
            print(f"error: {' '.join(self.about['program'])} ended with {code}")
        sys.stdout.flush()
        return code == 0


def run(programs, at_once, all_of_them):
    """Runs programs while fewer than so many tests run; returns whether all passed."""
    running, passed = {}, True
    while running or programs and (passed or all_of_them):
        free = at_once - sum(each.threads for each in running.values())
        while programs and free > 0 and (passed or all_of_them):
            program = programs.pop(0)
            if count := min(program.count(), free, os.cpu_count() or 1):
                started = program.start(count)
                running[started.process.pid] = started
                free -= count
        if running:
            pid, status, used = os.wait4(-1, 0)
            if pid in running:
                passed &= running.pop(pid).ended(pid, status, used)
    return passed


def main(folder, *arguments):
    programs = [Program(json.loads(path.read_text())) for path in sorted(Path(folder).iterdir())]
    rank = {name: number for number, name in enumerate(LONGEST)}
    programs.sort(key=lambda program: rank.get(program.name, len(rank)))
    alone = [program for program in programs if program.name in MEASURES]
    beside = [program for program in programs if program.name not in MEASURES]
    all_of_them, cores = "--no-fail-fast" in arguments, os.cpu_count() or 1
    passed = run(beside, cores + 1, all_of_them)
    if passed or all_of_them:
        for program in alone:
            passed &= run([program], cores, all_of_them)
    sys.exit(0 if passed else 101)


if __name__ == "__main__":
    (note if "SIDE_BY_SIDE" in os.environ else main)(*sys.argv[1:])
