"""The table of operators beside torch's own registry.

    python operator_table.py COMMAND FOLDER

Reads the rows in `operators/src/rows`, and the two lists beside them. Each row is held against torch's schemas and tags: that the
operator exists, whether it has a form in place and whether that takes the same arguments, whose memory its results lie in, whether
it draws random numbers, and whether values decide its sizes. Where a row says another thing on purpose, its name stands below with
the reason; a name that stands there without need is wrong, too. Exits 1 with every difference.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import torch
import torchvision  # noqa: F401  registers torchvision::*

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = "name class shape keeps flops kernel memory gives python in_place in_place_python split numbers".split()
# The rules of which the table itself says that values decide the sizes.
BY_VALUES = set(
    re.findall(r"Self::(\w+)", (ROOT / "operators/src/shape_rule.rs").read_text().split("fn is_by_values", 1)[1].split("\n    }", 1)[0])
)
ROW = re.compile(r"^    ((?:[\w-]+ +){13})\[([\w ]*)\];$", re.M)

NOT_IN_TORCH = {
    "functions of Python and operators of older torch, which IR text names": "softmin gaussian_nll_loss unique _linear __matmul__ "
    "interpolate local_response_norm normalize _view_copy where_self sizes ndimension is_tracing shape_as_tensor Scalar mod truediv where_list",
    "methods and attributes that code names like operators": "float half bfloat16 double long int short bool T H shape",
    "words of graphs, which are not operators": "ListUnpack ListConstruct TupleConstruct DictConstruct DictIndex annotate print Constant isinstance",
    "what devices that share a layer do between operators": "shard_copy shard_reduce shard_once shard_scatter shard_gather "
    "shard_gather_split shard_reduce_scatter shard_exchange shard_dropout shard_embedding shard_part shard_whole "
    "shard_all_rows shard_attention shard_batch_norm shard_counted shard_crop shard_cross_entropy shard_dropout_bands shard_from_bands shard_from_bands_split "
    "shard_group_norm shard_per_target shard_weight shard_rows shard_spread shard_stretch shard_to_bands shard_weighed shard_window "
    "shard_to_experts shard_from_experts shard_from_experts_split shard_experts_term shard_take shard_dispatch shard_combine shard_grouped_mm "
    "shard_to_first shard_from_first shard_from_first_split shard_collect shard_deal shard_first_term shard_lend shard_dropout_first shard_on_first",
    "only the form in place exists": "fill_diagonal",
}
OTHER_IN_PLACE = {
    "the form in place has a row of its own, for it asks nothing": "requires_grad",
}
OTHER_ARGUMENTS = {
    "the form of lists extends a list, and is met under that name alone": "add",
    "the first operand is called `input` in one form and `self` in the other; it is given by position": "dropout feature_dropout "
    "alpha_dropout feature_alpha_dropout",
}
VIEWS_UNSAID = {
    "composed of views, or of nothing where there is nothing to do, which its signature does not say": "sum_to_size to_dense "
    "dequantize conj_physical type_as pixel_shuffle pixel_unshuffle cartesian_prod atleast_1d atleast_2d atleast_3d meshgrid "
    "broadcast_tensors align_as",
    "gives back what it was given outside training": "dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout",
    "looks at memory as an unsafe form, which hides it from autograd alone": "_unsafe_view unsafe_split unsafe_chunk unsafe_split_with_sizes",
    "writes no element, though its name ends so": "requires_grad_",
}
VIEWS_DENIED = {
    "gives keys of a dictionary, which lie in nobody's memory": "keys",
}
DRAWS_UNSAID = {
    "draws only where an argument asks for dropout, and is never repeated": "scaled_dot_product_attention "
    "_scaled_dot_product_flash_attention _scaled_dot_product_attention_math _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_cudnn_attention lstm gru rnn_tanh rnn_relu",
}
SIZES_BY_VALUES_UNSAID = {
    "torch's tag stands at forms of which other operators are made": "nonzero_numpy unique _unique nms",
}
SIZES_BY_VALUES_DENIED = {
    "its rule infers what the arguments tell, and nothing where values decide": "linalg_lstsq index repeat_interleave one_hot",
}


class Registry:
    """Every schema by name."""

    def __init__(self):
        self.by_name = defaultdict(list)
        for schema in torch._C._jit_get_all_schemas():
            self.by_name[schema.name].append(schema)

    def schemas(self, name):
        return [one for space in ("aten", "prim", "torchvision") for one in self.by_name.get(f"{space}::{name}", ())]

    def tags(self, name):
        found = set()
        for schema in self.schemas(name):
            packet = getattr(getattr(torch.ops, schema.name.split("::")[0]), name, None)
            overload = getattr(packet, schema.overload_name or "default", None)
            found.update(getattr(overload, "tags", ()))
        return found

    def is_view(self, name):
        def writes(schema):
            return any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)

        plain = [schema for schema in self.schemas(name) if not writes(schema)]
        return any(one.alias_info is not None for schema in plain for one in schema.returns)

    def takes_the_same(self, name):
        def arguments(schema):
            return [(one.name, str(one.type)) for one in schema.arguments]

        plain = [arguments(schema) for schema in self.schemas(name)]
        return all(arguments(schema) in plain for schema in self.by_name[f"aten::{name}_"])


def rows():
    found = {}
    for file in sorted((ROOT / "operators/src/rows").glob("*.rs")):
        for cells, marks in ROW.findall(file.read_text()):
            row = dict(zip(COLUMNS, cells.split()))
            found[row["name"]] = {**row, "marks": marks.split()}
    return found


def main():
    table, registry = rows(), Registry()
    wrong = []

    def compare(what, is_different, allowed):
        expected = {name for group in allowed.values() for name in group.split()}
        found = {name for name, row in table.items() if is_different(name, row)}
        wrong.extend(f"{name}: {what}" for name in sorted(found - expected))
        wrong.extend(f"{name}: stands without need under “{what}”" for name in sorted(expected - found))

    def is_tagged(name, tag):
        return getattr(torch.Tag, tag) in registry.tags(name)

    compare("torch has no such operator", lambda name, row: not registry.schemas(name), NOT_IN_TORCH)
    compare(
        "torch says otherwise whether it has a form in place",
        lambda name, row: (row["in_place"] == "-") == (f"aten::{name}_" in registry.by_name),
        OTHER_IN_PLACE,
    )
    compare(
        "its form in place takes other arguments",
        lambda name, row: row["in_place"] == "Same" and not registry.takes_the_same(name),
        OTHER_ARGUMENTS,
    )
    compare(
        "torch does not say that it is a view",
        lambda name, row: row["memory"] != "-" and registry.schemas(name) and not registry.is_view(name),
        VIEWS_UNSAID,
    )
    compare("torch says that it is a view", lambda name, row: row["memory"] == "-" and registry.is_view(name), VIEWS_DENIED)
    compare(
        "torch says that it draws random numbers",
        lambda name, row: "Random" not in row["marks"] and is_tagged(name, "nondeterministic_seeded"),
        DRAWS_UNSAID,
    )
    compare(
        "torch does not say that it draws random numbers",
        lambda name, row: "Random" in row["marks"] and registry.schemas(name) and not is_tagged(name, "nondeterministic_seeded"),
        {},
    )
    compare(
        "torch does not say that values decide its sizes",
        lambda name, row: row["shape"] in BY_VALUES and not is_tagged(name, "dynamic_output_shape"),
        SIZES_BY_VALUES_UNSAID,
    )
    compare(
        "torch says that values decide its sizes",
        lambda name, row: row["shape"] not in BY_VALUES and is_tagged(name, "dynamic_output_shape"),
        SIZES_BY_VALUES_DENIED,
    )
    for file, flags in (("signatures.txt", []), ("names.txt", ["--names"])):
        made = subprocess.run(
            [sys.executable, "-W", "ignore", ROOT / "fixtures/signatures.py", *flags], capture_output=True, text=True, check=True
        )
        if made.stdout != (ROOT / "operators/src" / file).read_text():
            wrong.append(f"operators/src/{file}: torch prints another list")
    print("\n".join(wrong))
    print(f"{len(table)} rows, {len(wrong)} differences")
    sys.exit(1 if wrong or not table else 0)


if __name__ == "__main__":
    main()
