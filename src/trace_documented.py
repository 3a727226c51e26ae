"""Reads from the documentation of a model's forward what an argument is, where neither its name nor the config tells.

`model-analyze trace` feeds this file to the interpreter before `trace.py`. Models of transformers document their arguments
in one form, "name (`torch.LongTensor` of shape `(batch_size, max_patches, 2)`, *optional*):".
"""

import math
import re

# Words for a dimension that is 1 where one example is given.
ONE = r"^(batch(_size)?|num_(images|videos|questions|samples|marks)|total_num_frames|bsz|b)$"
# Words for the positions of a text.
LONG = r"sequence|seq_len|length|tokens|num_steps"


def documented(guesses, name):
    """Returns the likely values of an argument by the documentation of forward; none where it does not give the sizes."""
    said = re.search(rf"^\s*{re.escape(name)}\s*\(([^\n]*)", guesses.model.forward.__doc__ or "", re.MULTILINE)
    shape = said and re.search(r"of shape\s*`?\(([^()]*)\)", said[1])
    if not shape:
        return []
    words = [word.strip(" `") for word in shape[1].split(",")]
    sizes = [size_of(guesses, word) for word in words if word]
    if not sizes or None in sizes:
        return []
    kind = re.search(r"(Long|Int|Bool)Tensor", said[1])
    if not kind:
        return [drawn(*sizes)]
    if kind[1] == "Bool":
        return [{"shape": sizes, "dtype": "bool"}]
    # A count, a length or a truth is 1 here, where there is one of all; what else is left is an index.
    return [whole(1, 2, *sizes), whole(0, 1, *sizes), whole(0, 2, *sizes)]


def size_of(guesses, word):
    """Returns the size that a word or a product of words stands for; None if nothing tells."""
    parts = [size_of_word(guesses, part.strip()) for part in word.split("*")]
    return None if None in parts else math.prod(parts)


def size_of_word(guesses, word):
    if word.isdigit():
        return int(word)
    word = word.removeprefix("self.").removeprefix("config.")
    if re.search(ONE, word):
        return 1
    if word in ("height", "width", "image_height", "image_width"):
        return guesses.image()[1 if word.endswith("height") else 2]
    if "patches" in word:
        return guesses.placed_side() ** 2
    known = guesses.number(word)
    if known:
        return known
    if re.search(LONG, word):
        return guesses.tokens()
    return guesses.number("hidden_size", "d_model") if re.search("hidden|embed", word) else None
