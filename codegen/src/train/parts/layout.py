"""The stages of each rank: replicas, shards, copies, tables of passes."""

import csv
import math
import os
import re
import sys

from train_parts.cuts import cuts_of
from train_parts.stages import form_of


def read_csv(path):
    """Returns the passes of each rank of a compute-only schedule table, as (letter, stage, micro-batch)."""
    ranks = []
    with open(path, newline="") as file:
        for row in csv.reader(file):
            text = [cell.strip() for cell in row if cell.strip()]
            cells = [found for cell in text for found in re.findall(r"(\d+)(F|I|B|W)(\d+)", cell)]
            if len(cells) < len(text):
                sys.exit(f"{path}: not a compute-only schedule table")
            ranks.append([(letter, int(stage), int(number)) for stage, letter, number in cells])
    return ranks


def refuse(options, what, instead):
    """Exits if one of the options is given, with a message that they cannot be combined with `what` and what to use
    instead."""
    for option, is_given in options.items():
        if is_given:
            sys.exit(f"{option} cannot be combined with {what}: use {instead}")


# Schedules that run two copies of the model.
TWO_WAY = ("gems", "gemsmaster", "gemsmast", "mast", "master", "chimera", "dualpipe")


def copies_in(arguments, count):
    """Returns how many copies of `count` stages a schedule table runs: two if it has twice as many stages, and the
    second half of them is on the ranks in opposite order. Refuses options that two copies do not support."""
    if arguments.csv_ranks != [sorted({rank, 2 * count - 1 - rank}) for rank in range(count)]:
        return 1
    shards, sharding = f"--shards {arguments.shards}", f"--sharding {arguments.sharding}"
    for option, is_given in {shards: arguments.shards > 1, sharding: arguments.sharding != "none"}.items():
        if is_given:
            sys.exit(f"{option} cannot be combined with two copies of the model: use {option.split()[0]} {'1' if option is shards else 'none'}, or another schedule")
    # Messages in one direction keep their order, which must be the same in all stages of a copy.
    found = {}
    for letter, stage, number in (each for row in arguments.passes for each in row):
        if letter != "W":
            found.setdefault((stage, letter == "F"), []).append(number)
    for stage in range(2 * count):
        for is_forward in (True, False):
            numbers, first = found.get((stage, is_forward), []), found.get((stage // count * count, is_forward), [])
            if numbers != first or sorted(numbers) != list(range(len(numbers))):
                sys.exit(f"{arguments.schedule}: stage {stage} runs other micro-batches than stage {stage // count * count} of its copy, or in another order")
    first, second = (len(found.get((copy * count, True), [])) for copy in (0, 1))
    if first != second:
        sys.exit(f"{arguments.schedule}: one copy of the model runs {first} micro-batches, the other {second}: give both the same number")
    return 2


def splits_backward(arguments):
    """Tells whether a schedule has weight halves, which Python stages can defer."""
    halves = ("interleavedzerobubble", "zbvzerobubble", "dualpipev")
    return arguments.csv_is_split or arguments.schedule.lower() in halves


def refuse_shards(manifest, arguments):
    """Refuses options that shards do not support, before anything starts."""
    shards, own = f"--shards {arguments.shards}", "--shards 1"
    if not any("cuts" in about for about in manifest["stages"]):
        sys.exit(f"{shards}: these stages are not cut inside their operators: emit stages that are, or use {own}")
    if any(form_of(about, arguments.form) == "torchscript" for about in manifest["stages"]):
        sys.exit(f"{shards}: archives cannot be cut inside their operators: use --form python, or {own}")
    if arguments.sharding == "zero3":
        sys.exit(f"--sharding zero3 cannot be combined with {shards}: use --sharding zero2, or {own}")
    groups = manifest.get("shard_groups") or 1
    if arguments.shards % groups or arguments.shards == groups > 1:
        sys.exit(f"{shards}: these stages are for {groups} groups of shards: use a multiple of that, or {own}")
    cuts_in = [cuts_of(about) for about in manifest["stages"]]
    is_on_first = any(cut[1] == 0 for cuts in cuts_in for cut in cuts.values())
    if arguments.sharding != "none" and is_on_first:  # buckets of another size round otherwise, and copies drift apart
        sys.exit(f"--sharding {arguments.sharding} cannot be combined with {shards}, the first of which has parameters alone: use --sharding none, or {own}")
    for tied in manifest["tied"]:
        cuts = [cuts_in[holder["stage"]].get(holder["name"]) for holder in tied["holders"]]
        if any(cut != cuts[0] for cut in cuts):
            names = " and ".join(sorted({f"`{holder['name']}`" for holder in tied["holders"]}))
            sys.exit(f"{shards}: {names} are one parameter, cut in different ways: use {own}")


class Layout:
    """The stages and pipelines of each rank.

    Two copies of the model in opposite directions are two pipelines over the same ranks. Here, stage s of p is numbered
    s in the first and p + s in the second, as in schedule tables, and these numbers are called "held"; all other code
    uses stages of the model.

    If stages are cut inside their operators, each position of each replica is a run of neighbouring ranks, one per
    shard, and each shard has a chain of pipelines of its own: the following describes one of them. Shards may be groups of
    neighbours that share a stage first; those of a group share its part.

    A pipeline has one rank per position: a stage, or the stages that interleave there. With unequal replicas the number
    of pipelines is their least common multiple; a rank of a stage with fewer replicas is in several.
    """

    def __init__(self, manifest, arguments, schedule):
        self.count = count = len(manifest["stages"])
        self.copies = arguments.copies
        if arguments.csv_ranks is not None:
            self.stages_of = arguments.csv_ranks
            if sorted(stage for stages in self.stages_of for stage in stages) != list(range(self.copies * count)):
                sys.exit("the schedule table has other stages than this folder")
        else:
            is_v = schedule in ("zbvzerobubble", "dualpipev")
            ranks = arguments.pipeline_ranks or (count // 2 if is_v and count % 2 == 0 else count)
            if (schedule in ("1f1b", "gpipe", "forward") or arguments.updates) and ranks != count:
                sys.exit(f"schedule {arguments.schedule} runs one stage per rank: use --pipeline-ranks {count}, or Interleaved1F1B")
            if count % ranks:
                sys.exit(f"{count} stages cannot be divided evenly over {ranks} ranks")
            if is_v and count != 2 * ranks:
                sys.exit(f"schedule {arguments.schedule} runs two stages per rank, {2 * ranks} on {ranks}, and this folder has {count}: split again with --stages {2 * ranks}, or use 1F1B")
            if is_v:
                self.stages_of = [[rank, count - 1 - rank] for rank in range(ranks)]
            else:
                self.stages_of = [list(range(rank, count, ranks)) for rank in range(ranks)]
        width, self.shards = len(self.stages_of), arguments.shards
        self.group_size = self.shards
        if self.shards > 1:
            refuse_shards(manifest, arguments)
            self.group_size //= manifest.get("shard_groups") or 1
        replicas = [int(part) for part in str(arguments.replicas).split(",")]
        if len(replicas) == 1:
            replicas *= width
        if len(replicas) != width or min(replicas) < 1:
            sys.exit(f"--replicas takes one number, or {width}, one for each rank of a pipeline")
        self.is_unequal = len(set(replicas)) > 1
        is_listed = schedule in ("1f1b", "gpipe") or arguments.updates
        if self.is_unequal and (arguments.csv_ranks is not None or not is_listed or width != count):
            sys.exit("unequal replicas run one stage per rank under 1F1B, GPipe or PipeDream: use --schedule 1F1B, or one number for --replicas")
        if self.is_unequal and self.shards > 1:
            sys.exit(f"--shards {self.shards} cannot be combined with unequal replicas: use one number for --replicas, or --shards 1")
        self.replicas, self.group = replicas, arguments.sharding_group
        if self.group and arguments.asks_group and all(count % self.group for count in replicas):
            each = " or ".join(map(str, sorted(set(replicas))))
            sys.exit(f"--sharding-group {self.group} does not divide {each} replicas: use another number, or 0 for all of them")
        self.pipelines = math.lcm(*replicas) * self.copies
        self.world = sum(replicas) * self.shards
        if not self.is_unequal:
            self.ranks = [[replica * width + place for replica in range(replicas[0])] for place in range(width)]
        else:
            starts = [sum(replicas[:place]) for place in range(width)]
            self.ranks = [list(range(start, start + n)) for start, n in zip(starts, replicas)]
        planned = arguments.plan.get("ranks") or []  # as placed on machines
        if [len(ranks) for ranks in planned] == replicas and self.copies == self.shards == 1:
            self.ranks = planned

    def members(self, pipeline, shard):
        """Returns the ranks of a pipeline, by position; those of a second copy start at the other end."""
        replica, copy = divmod(pipeline, self.copies)
        members = [ranks[replica % len(ranks)] * self.shards + shard for ranks in self.ranks]
        return members[::-1] if copy else members

    def owners(self, pipeline, shard):
        """Returns the rank of each stage in a pipeline."""
        ranks = self.members(pipeline, shard)
        if self.copies > 1:
            return dict(enumerate(ranks))
        return {stage: ranks[place] for place, stages in enumerate(self.stages_of) for stage in stages}

    def place(self, rank):
        """Returns a rank's position in its pipelines, its number among the replicas of that position, and its number
        among their shards."""
        unit, shard = divmod(rank, self.shards)
        for place, units in enumerate(self.ranks):
            if unit in units:
                return place, units.index(unit), shard
        raise AssertionError(rank)

    def replicas_of_place(self, place, shard):
        return [unit * self.shards + shard for unit in self.ranks[place]]

    def sharers(self, place, shard):
        """Returns the replicas of a position that shard together, group by group: all of them without a group size,
        or if it does not divide them."""
        ranks = self.replicas_of_place(place, shard)
        size = self.group if self.group and len(ranks) % self.group == 0 else len(ranks)
        return [tuple(sorted(ranks[at : at + size])) for at in range(0, len(ranks), size)]

    def on_machines(self, place, shard):
        """Returns the replicas of a position, machine by machine; every machine has the same number of ranks."""
        each, found = int(os.environ.get("LOCAL_WORLD_SIZE", self.world)), {}
        for rank in sorted(self.replicas_of_place(place, shard)):
            found.setdefault(rank // each, []).append(rank)
        counts = {len(ranks) for ranks in found.values()}
        if len(counts) > 1:
            sys.exit(f"--collective hierarchical needs the same number of replicas of a stage on each machine, not {' and '.join(map(str, sorted(counts)))}")
        return [tuple(ranks) for ranks in found.values()]

    def ranks_of_stage(self, stage, shard):
        """Returns the ranks that hold the same part of a stage."""
        places = [place for place, held in enumerate(self.stages_of) if any(one % self.count == stage for one in held)]
        return sorted({rank for place in places for rank in self.replicas_of_place(place, shard)})

    def peers(self):
        """Returns for each rank the ranks that hold the same stages, itself included: replicas and shards."""
        found = {}
        for place in range(len(self.stages_of)):
            ranks = sorted(rank for shard in range(self.shards) for rank in self.replicas_of_place(place, shard))
            found |= dict.fromkeys(ranks, ranks)
        return [found[rank] for rank in range(self.world)]

    def shard_ranks(self, rank):
        """Returns the ranks that share a stage with this one."""
        first = rank - rank % self.shards
        return range(first, first + self.shards)

    def inner_ranks(self, rank):
        """Returns those of them in its group."""
        first = rank - rank % self.group_size
        return range(first, first + self.group_size)

    def outer_ranks(self, rank):
        """Returns those at its place in all groups."""
        return self.shard_ranks(rank)[rank % self.group_size :: self.group_size]


def replicas_of(arguments):
    return math.lcm(*(int(part) for part in str(arguments.replicas).split(","))) * getattr(arguments, "copies", 1)
