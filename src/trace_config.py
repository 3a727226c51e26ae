"""Builds a model of transformers from its config, and finds inputs that its forward accepts.

`model-analyze trace --hf` feeds this file to the interpreter before `trace.py`. A config seldom says which arguments a
model takes, so there are several guesses, the likeliest first: the arguments that forward names, with sizes from the
config.
"""

import inspect
import itertools
import math
import os
import re


def build_from_config(path, say):
    """Returns the model of Hugging Face's transformers that a config.json, or a folder with one, describes."""
    # Nothing is downloaded, and no code next to the config is run.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise Refused("this Python has no transformers, which --hf needs: pip install transformers") from error
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    named = list(config.architectures or ())
    found = next((name for name in named if hasattr(transformers, name)), None)
    # The class itself: its `from_config` would take the type of the weights from the config.
    chosen = getattr(transformers, found) if found else class_of(config)
    if named and not found:
        say(note=f"transformers has no {' or '.join(named)}: the model is a {chosen.__name__}")
    return chosen(config)


def class_of(config):
    """Returns the class of a config that names none: the model without a head, or else the first of those with one."""
    from transformers.models.auto import modeling_auto

    with_heads = [table for name, table in vars(modeling_auto).items() if re.fullmatch("MODEL_FOR_.*_MAPPING", name)]
    for table in (modeling_auto.MODEL_MAPPING, *with_heads):
        if type(config) in table:
            found = table[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise Refused(f"transformers lists no model for a config of type {config.model_type}: name the class in its `architectures`")


# Example sizes: tokens, samples of audio, frames of its features, and the side of an image if the model accepts any.
EXAMPLE_TOKENS = 128
# Fewer words where each is multiplied with billions of parameters: a model runs four times and more until it is traced.
FEWEST_TOKENS = 16
MOST_PRODUCTS = 1 << 38
# An image and the words in its place are an example where they take no more than this: else words alone are.
MOST_WITH_PLACES = 1 << 40
EXAMPLE_PIXELS = 224
EXAMPLE_SAMPLES = 16_000
EXAMPLE_FRAMES = 512
# Patches per side of an image, and frames of a video, for models that are told both: all equal, so one range suffices.
EXAMPLE_GRID, SMALL_GRID = 8, 4
# The most guesses that are tried.
MOST_GUESSES = 40


def inputs_of_config(model):
    """Returns guesses at the inputs of a model of transformers, each a list in the form of `--input`, the likeliest first."""
    import torch

    if "forward" not in vars(model) and type(model).forward is torch.nn.Module.forward:
        raise Refused(f"{type(model).__name__} has no forward", hint="--method NAME --input … traces another of its methods")
    guesses = Guesses(model)
    found = []
    for _ in guesses.looks():
        found = guesses.with_places()
        if found:
            break
    for _ in guesses.looks():
        ways = []
        for names in guesses.arguments():
            missing = [name for name in names if not guesses.of(name)]
            if not missing:
                ways += map(list, guesses.together(names))
            elif not (found or ways):
                raise Refused(
                    f"the config of {type(model).__name__} does not give the size of its inputs {' and '.join(missing)}",
                    hint=f"give them all: {' '.join(f'--input {name}=SHAPE[:DTYPE]' for name in names)}",
                )
        found += ways[:MOST_GUESSES]
    return unlike(found)


def drawn(*shape):
    return {"shape": list(shape), "dtype": "float32"}


def between(low, high, *shape):
    return drawn(*shape) | {"low": low, "high": high}


def fixed(values, *shape):
    return {"shape": list(shape), "dtype": "int64", "values": values, "is_fixed": True}


def whole(low, high, *shape):
    return {"shape": list(shape), "dtype": "int64", "low": low, "high": high}


class Guesses:
    """The likely values of a model's arguments, from their names and the config."""

    def __init__(self, model):
        self.model = model
        self.config = model.config
        parameters = inspect.signature(model.forward).parameters
        self.known = [name for name, one in parameters.items() if one.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
        self.required = [name for name in self.known if parameters[name].default is inspect.Parameter.empty]
        main = getattr(model, "main_input_name", "input_ids")
        # Parts of models inherit a name that they do not accept.
        self.main = main if main in self.known or not self.known else self.known[0]
        self.has_grid = any(name.endswith(GRIDS) for name in self.known)
        self.is_packed = "spatial_shapes" in self.known
        # Patches of an image come with their columns and rows.
        self.is_placed = any(re.search(COORDINATES, name) for name in self.known)
        self.smallest_table = smallest_table(model)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        most = max(FEWEST_TOKENS, MOST_PRODUCTS // max(parameters, 1))
        self.most_tokens = min(EXAMPLE_TOKENS, 1 << most.bit_length() - 1)
        self.most_places = max(FEWEST_TOKENS, MOST_WITH_PLACES // max(parameters, 1))
        self.side = EXAMPLE_GRID if self.most_tokens == EXAMPLE_TOKENS else SMALL_GRID
        self.is_square = self.is_one_frame = False

    def looks(self):
        """Takes, one after the other, the ways in which a config's size of an image can be meant."""
        self.is_square = self.is_one_frame = False
        yield
        # The config of a model that puts an image below another has the size of both.
        _, height, width = self.image()
        if height != width:
            self.is_square = True
            yield
            self.is_square = False
        # A model that has no films wants one frame.
        if self.has_grid:
            self.is_one_frame = True
            yield
            self.is_one_frame = False

    def arguments(self):
        """Returns sets of arguments to call the model with, the likeliest first."""
        names = list(dict.fromkeys([self.main, *self.required]))
        # Parallel towers, such as CLIP's, take an image of their own; if tokens stand for the image, the tokens decide its size.
        held = [name for name, _, *keys in PLACES if any(hasattr(self.config, key) for key in keys)]
        beside = [name for part, name in TOWERS if hasattr(self.config, part) and name in self.known and name not in held]
        if self.main == "input_ids":
            names += [name for name in beside if name not in names]
        names = self.with_sizes(names)
        # Arguments that a model may need although they have a default, such as ViLT's image.
        optional = set(self.known).difference(names)
        masks = MASKS_OF_FEATURES if "input_features" in names else ()
        optional = [name for name in ("input_ids", "pixel_values", "encoder_hidden_states", *masks) if name in optional]
        optional += [name for name in self.known if name not in (*names, *optional) and self.may_be_needed(name)]
        decoder = [name for name in ("decoder_input_ids", "decoder_input_values") if name in self.known and name not in names][:1]
        found = [names, names + decoder] if decoder else [names]
        if self.config.is_encoder_decoder:
            found.reverse()
        return found + [self.with_sizes([*base, name]) for base in found for name in optional if name not in base]

    def may_be_needed(self, name):
        """Tells whether an argument with a default is not one of those that models do without."""
        return not re.search(DISPENSABLE, name) and any(re.search(pattern, name) for pattern, _ in PATTERNS)

    def with_sizes(self, names):
        """Adds what says how the patches of an image lie, where an image is given as patches."""
        beside = ["image_grid_thw", "image_grid_hw", "grid_thw", "grid_hw"] if "pixel_values" in names else []
        beside += ["video_grid_thw"] if "pixel_values_videos" in names else []
        beside += [name for name in self.known if "pixel_values" in names and re.search(COORDINATES, name)]
        beside += ["pixel_attention_mask", "spatial_shapes"] if self.is_packed and "pixel_values" in names else []
        return [*names, *(name for name in beside if name in self.known and name not in names)]

    def with_places(self):
        """Returns guesses in which words stand for an image or a sound, as many as the model puts in their place.

        Without it such a model is traced as one of words alone. All words are the token that holds the place, which a range
        can say.
        """
        for name, kind, *keys in PLACES:
            token = next((value for key in keys if isinstance(value := getattr(self.config, key, None), int)), None)
            if token is None or not {name, "input_ids"} <= set(self.known):
                continue
            names = self.with_sizes([name, *(other for other in self.required if other not in (name, "input_ids"))])
            masks = [mask for mask in MASKS_OF_FEATURES if name == "input_features" and mask in self.known]
            ways = itertools.chain(self.together(names), self.together(names + masks) if masks else ())
            for way in ways:
                count = places_in_words(self.model, token, way)
                if count and count <= self.most_places:
                    words = [whole(token, token + 1, 1, count) | {"name": "input_ids"}]
                    # Some are told beside the words what stands in their place.
                    if "mm_token_type_ids" in self.known:
                        words.append(whole(kind, kind + 1, 1, count) | {"name": "mm_token_type_ids"})
                    return [[*words, *way]]
        return []

    def together(self, names):
        """Yields what some arguments may be together, each with its name.

        Arguments of which the same is guessed, such as an image and another beside it, are of one form.
        """
        likely = {name: self.of(name) for name in names}
        kinds = unlike(list(likely.values()))
        for chosen in itertools.product(*kinds):
            yield [chosen[kinds.index(likely[name])] | {"name": name} for name in names]

    def of(self, name):
        """Returns the likely values of one argument, the likeliest first; empty if nothing tells."""
        guess = next((guess for pattern, guess in PATTERNS if re.search(pattern, name)), None)
        return unlike((guess(self, name) if guess else []) or documented(self, name))

    def number(self, *names, within=None):
        """Returns the first number in the config, or in a part of it, under one of the names."""
        for name in names:
            for part in parts_of_config(within or self.config):
                value = getattr(part, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return None

    def part(self, *names):
        return next((getattr(self.config, name) for name in names if getattr(self.config, name, None) is not None), self.config)

    def text(self, name):
        own = getattr(self.config, f"{name.removesuffix('input_ids')}config", None)
        if own is not None:
            return own
        is_decoder = name.startswith("decoder") or not self.config.is_encoder_decoder
        found = self.part("decoder_config", "decoder") if is_decoder else self.part("encoder_config", "encoder")
        if not hasattr(found, "get_text_config"):
            found = self.config
        return found if found is not self.config else self.config.get_text_config()

    def tokens(self, name=""):
        # Some configs say -1 for "any". Of words beside an image fewer may be looked at than the model of words has positions for.
        limits = getattr(self.text(name), "max_position_embeddings", None), self.number("max_text_len")
        return min([self.most_tokens, *(most for most in limits if most and most > 0)])

    def words(self, name):
        text, tokens = self.text(name), self.tokens(name)
        vocabulary = getattr(text, "vocab_size", None) or self.number("vocab_size")
        if not vocabulary:
            return []
        # Audio codes have several parallel codebooks.
        books = self.number("num_codebooks", "num_quantizers", "num_channels", within=text)
        # Each choice is a text of its own.
        if type(self.model).__name__.endswith("ForMultipleChoice"):
            return [whole(0, vocabulary, 1, 2, tokens)]
        plain = [whole(0, vocabulary, 1, tokens)]
        if self.smallest_table and self.smallest_table < vocabulary:
            plain.append(whole(0, self.smallest_table, 1, tokens))
        layered = [whole(0, vocabulary, 1, tokens, books), whole(0, vocabulary, 1, books, tokens)] if books else []
        is_layered = "num_channels" in vars(text) and name.startswith("decoder")
        return layered + plain if is_layered else plain + layered

    def vision(self):
        # A config in parts has the image's size in its vision part.
        return self.config if hasattr(self.config, "image_size") else self.part("vision_config", "backbone_config")

    def image(self):
        """Returns channels, height and width."""
        vision = self.vision()
        size = getattr(vision, "image_size", None) or self.number("image_size", within=vision) or EXAMPLE_PIXELS
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        if self.is_square:
            height = width = min(height, width)
        return self.number("num_channels", "in_channels", "in_chans", within=vision) or 3, height, width

    def pixels(self, name):
        if self.has_grid or self.is_packed or self.is_placed:
            return self.patches(name)
        colours, height, width = self.image()
        frames = getattr(self.vision(), "num_frames", None)
        # A model of videos takes its frames in one tensor.
        film = drawn(1, frames or 2, colours, height, width)
        found = [film, drawn(1, colours, height, width)]
        if not (frames or name.endswith("videos")):
            found.reverse()
        return [*found, drawn(1, 1, colours, height, width), drawn(1, colours, frames or 2, height, width)]

    def patches(self, _):
        vision = self.part("vision_config")
        side = self.number("patch_size", "spatial_patch_size", within=vision)
        if not side:
            return []
        numbers = (self.number("num_channels", "in_channels", "in_chans", within=vision) or 3) * side * side
        deep = self.number("temporal_patch_size", within=vision) or 1
        wide = self.number("hidden_size", "embed_dim", within=vision)
        sizes = [numbers * deep, numbers, numbers * 2, *([wide] if wide else [])]
        batch = [self.side**2] if self.is_one_frame else [self.side**3]
        if self.is_packed or self.is_placed:
            batch = [1, (self.packed_side() if self.is_packed else self.placed_side()) ** 2]
        return [drawn(*batch, size) for size in dict.fromkeys(sizes)]

    def placed_side(self):
        """Returns the patches along each side of an image whose patches have coordinates: all of them can be pooled."""
        pooled = self.number("pooling_kernel_size", "spatial_merge_size", within=self.part("vision_config")) or 1
        return math.ceil(self.side / pooled) * pooled

    def coordinates(self, _):
        """The column and the row of each patch of an image."""
        side = self.placed_side()
        return [whole(0, side, 1, side**2, 2)]

    def flat_patches(self, _):
        """Patches that begin with their row and their column, which are below 2 here."""
        vision = self.part("vision_config")
        side, colours = self.number("patch_size", within=vision), self.number("num_channels", within=vision) or 3
        wide = self.number("patch_embed_hidden_size", within=vision) or side and side * side * colours
        return [between(0, 2, 1, EXAMPLE_TOKENS, 2 + wide)] if wide else []

    def masked_patches(self, _):
        """A truth for each patch of an image or of a film."""
        vision, (_, height, width) = self.vision(), self.image()
        side = getattr(vision, "patch_size", None)
        tall, wide = side if isinstance(side, (list, tuple)) else (side, side)
        if not tall:
            return []
        frames = (getattr(vision, "num_frames", None) or 1) // (getattr(vision, "tubelet_size", None) or 1)
        return [{"shape": [1, frames * (height // tall) * (width // wide)], "dtype": "bool"}]

    def packed_side(self):
        """Returns the patches along each side of an image whose patches lie in one row."""
        return math.isqrt(self.number("num_patches", within=self.part("vision_config")) or self.side**2)

    def shapes(self, _):
        return [whole(self.packed_side(), self.packed_side() + 1, 1, 2)]

    def grid(self, name):
        if self.is_one_frame and name.endswith("thw"):
            return [fixed([1, self.side, self.side], 1, 3)]
        return [whole(self.side, self.side + 1, 1, 2 if name.endswith("hw") and not name.endswith("thw") else 3)]

    def merges(self, _):
        merge = self.number("spatial_merge_size", "merge_size", within=self.part("vision_config")) or 2
        return [whole(merge, merge + 1, 1)]

    def sound(self, name):
        """A wave, its spectrogram, or what a layer has made of it before the model."""
        channels = self.number("audio_channels", "num_audio_channels") or 1
        later = [*self.features(""), *self.states(name)]
        return later if name.startswith("decoder") else [drawn(1, EXAMPLE_SAMPLES), drawn(1, channels, EXAMPLE_SAMPLES), *later]

    def features(self, _):
        """Frames of a spectrogram: either axis first."""
        audio = self.part("audio_config", "encoder_config", "speech_encoder")
        bands = self.number(*BANDS, within=audio) or self.number(*BANDS)
        if not bands:
            return []
        most, length = self.number("max_source_positions", within=audio), self.number("max_length", within=audio)
        frames = EXAMPLE_FRAMES
        # Audio with a maximum length, as Whisper's: each example has that length.
        found = [drawn(1, bands, 2 * most if most else frames), drawn(1, frames, bands)]
        found += [drawn(1, length, bands)] if length else []
        return [*found, drawn(1, bands, frames), drawn(1, 1, frames, bands)]

    def mask(self, name):
        """Ones, as many as there are positions to mask. A mask that has an image's colours may be an image."""
        ones = self.ones(name)
        return ones + [between(0, 1, *spec["shape"]) for spec in ones if len(spec["shape"]) == 4]

    def ones(self, name):
        if name == "image_attention_mask":
            return [whole(1, 2, 1, self.tokens(), 1)]
        if "pixel" in name and self.is_packed:
            return [whole(1, 2, 1, self.packed_side() ** 2)]
        if "pixel" in name or name == "prompt_masks":
            colours, height, width = self.image()
            return [whole(1, 2, 1, height, width), whole(1, 2, 1, colours, height, width)]
        if name in MASKS_OF_FEATURES:
            lengths = dict.fromkeys(size for spec in self.features("") for size in reversed(spec["shape"][1:]))
            return [whole(1, 2, 1, length) for length in lengths]
        # `classes_attention_mask` masks `classes_input_ids`.
        own = re.sub(r"(attention_)?mask$", "input_ids", name)
        others = [other for other in self.required if other != name and not other.endswith("mask")]
        # What no words belong to masks what the model asks for, and not itself.
        masked = [own] if own in self.known and own != name else others
        about = [spec for other in masked for spec in self.of(other)[:1]]
        lengths = [size for spec in about for size in spec["shape"][1:]]
        return [whole(1, 2, 1, length) for length in dict.fromkeys([*lengths, self.tokens()])]

    def boxes(self, _):
        return [whole(0, 1000, 1, self.tokens(), 4), whole(1, 2, 1, self.tokens(), 4)]

    def states(self, name):
        if self.has_grid:
            return self.patches("")
        first = ["encoder_hidden_size"] if name.startswith("encoder_") else []
        widths = [self.number(key) for key in (*first, "d_model", "d_latents", "latent_dim", "hidden_size")]
        forms = [drawn(1, self.tokens(), wide) for wide in widths if wide]
        return forms + [drawn(1, wide, *more) for more in ((self.tokens(),), ()) for wide in widths if wide]

    def anything(self, name):
        """What a model makes of words, if it has a table for them, an image or states by the part that is before it."""
        words = self.words(name) if self.smallest_table else []
        return [*words, *self.states(name), *self.pixels(name)]

    def series(self, name):
        """Past values, as far back as the longest lag."""
        context = self.number("context_length", "prediction_length")
        if not context:
            return []
        past = context + max(getattr(self.config, "lags_sequence", None) or [0])
        if "time_features" in name:
            # An age feature for each step is appended to those that the config counts.
            return [drawn(1, past, self.number("num_time_features") or 1), drawn(1, past, 1)]
        width = self.number("num_input_channels", "input_size") or 1
        flat, wide = drawn(1, past), drawn(1, past, width)
        return [wide, flat] if width > 1 else [flat, wide]


DISPENSABLE = "past|^output_|labels|position|head_mask|inputs_embeds|token_type|^(decoder_|encoder_)?attention_mask$"
TOWERS = (("vision_config", "pixel_values"), ("audio_config", "input_features"), ("audio_config", "input_values"))
MASKS_OF_FEATURES = ("feature_attention_mask", "input_features_mask")
GRIDS = ("grid_thw", "grid_hw")
COORDINATES = r"^(pixel|image|patch)_position_ids$"
# What stands in the place of words, the number of its kind, and how configs call the token that holds the place.
PLACES = (
    ("pixel_values", 1, "image_token_id", "image_token_index"),
    ("pixel_values_videos", 2, "video_token_id", "video_token_index"),
    ("input_features", 3, "audio_token_id", "audio_token_index"),
    ("input_values", 3, "audio_token_id", "audio_token_index"),
)  # fmt: skip
BANDS = (
    "num_mel_bins", "input_feat_per_channel", "feature_size", "mel_bins", "n_mels", "num_features", "input_features_size",
    "feature_projection_input_dim", "input_dim",
)  # fmt: skip
# Patterns of arguments' names, the first that fits.
PATTERNS = (
    (r"grid_t?hw$", Guesses.grid),
    (r"^spatial_shapes$", Guesses.shapes),
    (r"merge_sizes$", Guesses.merges),
    (r"^past_|^future_", Guesses.series),
    (r"^bool_masked_pos$", Guesses.masked_patches),
    (r"^flattened_patches$", Guesses.flat_patches),
    (COORDINATES, Guesses.coordinates),
    (r"_masks?$", Guesses.mask),
    (r"(^|_)ids$|^task_inputs$", Guesses.words),
    (r"pixel_values|images?$|^input$", Guesses.pixels),
    (r"(^|_)input_values$|audio_values$", Guesses.sound),
    (r"input_features$|audio_mel$", Guesses.features),
    (r"^bbox$", Guesses.boxes),
    (r"^inputs$", Guesses.anything),
    (r"states?$|embeds$|latents$", Guesses.states),
)


def parts_of_config(config):
    """Yields a config and its nested configs."""
    yield config
    for value in vars(config).values():
        if type(value).__name__.endswith("Config") and hasattr(value, "get_text_config"):
            yield from parts_of_config(value)


class Counted(Exception):
    """Ends a run as soon as it has shown what it was for."""


def places_in_words(model, token, specs):
    """Returns how many words an image or a sound takes, as the model says when it puts it in their place; None if it does not."""
    import torch

    holders = [module for module in model.modules() if hasattr(module, "get_placeholder_mask")]
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))

    def counting(original):
        def count(*arguments, **keywords):
            given = inspect.signature(original).bind(*arguments, **keywords).arguments
            features = [value for name, value in given.items() if name.endswith("features") and value is not None]
            raise Counted(features[0].numel() // given["inputs_embeds"].shape[-1] if features else None)

        return count

    buffers = Buffers(model)
    before = [module.__dict__.get("get_placeholder_mask") for module in holders]
    try:
        for module in holders:
            module.get_placeholder_mask = counting(module.get_placeholder_mask)
        with torch.random.fork_rng(), torch.no_grad(), no_more_products(MOST_WITH_PLACES):
            inputs = {spec["name"]: sample(spec, drawn_range(spec, model), device) for spec in specs}
            # One word alone would be the next of a text that was read before.
            model(input_ids=torch.full((1, 2), token, device=device), **inputs)
    except Counted as found:
        return found.args[0]
    except Exception as error:
        # "Audio features and audio tokens do not match, tokens: 2, features: 750"; other failures mean that the guess was wrong.
        told = re.search(r"tokens.*features:? *(\d+)", str(error))
        return int(told[1]) if told else None
    finally:
        for module, function in zip(holders, before):
            put_back(module, "get_placeholder_mask", function)
        buffers.restore()
    return None


def no_more_products(most):
    """Ends a run that takes more multiplications than this."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class NoMore(TorchDispatchMode):
        done = 0

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            found = function(*arguments, **(keywords or {}))
            count = flop_registry.get(function._overloadpacket)
            self.done += count(*arguments, **(keywords or {}), out_val=found) // 2 if count else 0
            if self.done > most:
                raise Counted(None)
            return found

    return NoMore()


def smallest_table(model):
    """Returns the number of rows of the smallest token embedding."""
    import torch

    return min((module.num_embeddings for module in model.modules() if isinstance(module, torch.nn.Embedding)), default=None)


def unlike(specs):
    """Returns the specs without repetitions."""
    return [spec for index, spec in enumerate(specs) if spec not in specs[:index]]


def spelling(spec):
    """Returns an input in the notation of `--input`."""
    text = f"{spec['name']}={'x'.join(map(str, spec['shape']))}"
    if spec["dtype"] != "float32":
        text += f":{spec['dtype']}"
    if "values" in spec:
        return f"{text}:{','.join(map(str, spec['values']))}"
    return f"{text}:{spec['low']}..{spec['high']}" if "low" in spec else text
