"""Builds a model of transformers from its config, and finds inputs that its forward accepts.

`model-analyze trace --hf` feeds this file to the interpreter before `trace.py`. A config seldom says which arguments a
model takes, so there are several guesses, the likeliest first: the arguments that forward names, with sizes from the
config.
"""

import inspect
import itertools
import os
import re


def build_from_config(path):
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
    for name in config.architectures or ():
        if hasattr(transformers, name):
            # The class itself: its `from_config` would take the type of the weights from the config.
            return getattr(transformers, name)(config)
    return transformers.AutoModel.from_config(config, trust_remote_code=False)


# Example sizes: tokens, samples of audio, frames of its features, and the side of an image if the model accepts any.
EXAMPLE_TOKENS = 128
EXAMPLE_PIXELS = 224
EXAMPLE_SAMPLES = 16_000
EXAMPLE_FRAMES = 512
# Patches per side of an image, and frames of a video, for models that are told both: all equal, so one range suffices.
EXAMPLE_GRID = 8
# The most guesses that are tried.
MOST_GUESSES = 24


def inputs_of_config(model):
    """Returns guesses at the inputs of a model of transformers, each a list in the form of `--input`, the likeliest first."""
    import torch

    if "forward" not in vars(model) and type(model).forward is torch.nn.Module.forward:
        raise Refused(f"{type(model).__name__} has no forward", hint="--method NAME --input … traces another of its methods")
    guesses = Guesses(model)
    found = []
    for names in guesses.arguments():
        ways = [[spec | {"name": name} for spec in guesses.of(name)] for name in names]
        missing = [name for name, way in zip(names, ways) if not way]
        if missing and found:
            continue
        if missing:
            raise Refused(
                f"the config of {type(model).__name__} does not give the size of its inputs {' and '.join(missing)}",
                hint=f"give them all: {' '.join(f'--input {name}=SHAPE[:DTYPE]' for name in names)}",
            )
        found += [list(way) for way in itertools.product(*ways)]
    return found[:MOST_GUESSES]


def drawn(*shape):
    return {"shape": list(shape), "dtype": "float32"}


def whole(low, high, *shape):
    return {"shape": list(shape), "dtype": "int64", "low": low, "high": high}


class Guesses:
    """The likely values of a model's arguments, from their names and the config."""

    def __init__(self, model):
        self.config = model.config
        parameters = inspect.signature(model.forward).parameters
        self.known = [name for name, one in parameters.items() if one.kind == inspect.Parameter.POSITIONAL_OR_KEYWORD]
        self.required = [name for name in self.known if parameters[name].default is inspect.Parameter.empty]
        main = getattr(model, "main_input_name", "input_ids")
        # Parts of models inherit a name that they do not accept.
        self.main = main if main in self.known or not self.known else self.known[0]
        self.has_grid = any(name.endswith(("grid_thw", "grid_hw")) for name in self.required)
        self.smallest_table = smallest_table(model)

    def arguments(self):
        """Returns sets of arguments to call the model with, the likeliest first."""
        names = list(dict.fromkeys([self.main, *self.required]))
        # Parallel towers, such as CLIP's, take an image of their own; if tokens stand for the image, the tokens decide
        # its size.
        has_words = any(hasattr(self.config, name) for name in ("image_token_id", "image_token_index"))
        beside = [name for part, name in TOWERS if hasattr(self.config, part) and name in self.known and not has_words]
        if self.main == "input_ids":
            names += [name for name in beside if name not in names]
        # Arguments that a model may need although they have a default, such as ViLT's image.
        more = [[*names, name] for name in ("pixel_values", "encoder_hidden_states") if name in self.known and name not in names]
        decoder = [name for name in ("decoder_input_ids",) if name in self.known and name not in names]
        if self.config.is_encoder_decoder:
            return [names + decoder, names, *more] if decoder else [names, *more]
        return [names, names + decoder, *more] if decoder else [names, *more]

    def of(self, name):
        """Returns the likely values of one argument, the likeliest first; empty if the config does not tell."""
        for pattern, guess in PATTERNS:
            if re.search(pattern, name):
                return unlike(guess(self, name))
        return []

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
        is_decoder = name.startswith("decoder") or not self.config.is_encoder_decoder
        found = self.part("decoder_config", "decoder") if is_decoder else self.part("encoder_config", "encoder")
        if not hasattr(found, "get_text_config"):
            found = self.config
        return found if found is not self.config else self.config.get_text_config()

    def tokens(self, name=""):
        most = getattr(self.text(name), "max_position_embeddings", None) or -1
        # Some configs say -1 for "any".
        return min(EXAMPLE_TOKENS, most) if most > 0 else EXAMPLE_TOKENS

    def words(self, name):
        text, tokens = self.text(name), self.tokens(name)
        vocabulary = getattr(text, "vocab_size", None) or self.number("vocab_size")
        if not vocabulary:
            return []
        # Audio codes have several parallel codebooks.
        books = self.number("num_codebooks", "num_quantizers", "num_channels", within=text)
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
        return self.number("num_channels", "in_channels", "in_chans", within=vision) or 3, height, width

    def pixels(self, name):
        if self.has_grid:
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
        return [drawn(EXAMPLE_GRID**3, size) for size in dict.fromkeys(sizes)]

    def grid(self, name):
        return [whole(EXAMPLE_GRID, EXAMPLE_GRID + 1, 1, 2 if name.endswith("hw") and not name.endswith("thw") else 3)]

    def merges(self, _):
        merge = self.number("spatial_merge_size", "merge_size", within=self.part("vision_config")) or 2
        return [whole(merge, merge + 1, 1)]

    def sound(self, _):
        channels = self.number("audio_channels", "num_audio_channels") or 1
        return [drawn(1, EXAMPLE_SAMPLES), drawn(1, channels, EXAMPLE_SAMPLES), *self.features("")]

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
        """Ones, as many as there are positions to mask."""
        if "pixel" in name or name == "prompt_masks":
            colours, height, width = self.image()
            return [whole(1, 2, 1, height, width), whole(1, 2, 1, colours, height, width)]
        about = [spec for other in self.required if not other.endswith("mask") for spec in self.of(other)[:1]]
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


TOWERS = (("vision_config", "pixel_values"), ("audio_config", "input_features"), ("audio_config", "input_values"))
BANDS = (
    "num_mel_bins", "input_feat_per_channel", "feature_size", "mel_bins", "n_mels", "num_features", "input_features_size",
    "feature_projection_input_dim", "input_dim",
)  # fmt: skip
# Patterns of arguments' names, the first that fits.
PATTERNS = (
    (r"grid_t?hw$", Guesses.grid),
    (r"merge_sizes$", Guesses.merges),
    (r"^past_|^future_", Guesses.series),
    (r"_masks?$", Guesses.mask),
    (r"(^|_)ids$|^task_inputs$", Guesses.words),
    (r"pixel_values|images?$|^input$", Guesses.pixels),
    (r"^input_values$|audio_values$", Guesses.sound),
    (r"input_features$", Guesses.features),
    (r"^bbox$", Guesses.boxes),
    (r"states?$|embeds$|latents$|^inputs$", Guesses.states),
)


def parts_of_config(config):
    """Yields a config and its nested configs."""
    yield config
    for value in vars(config).values():
        if type(value).__name__.endswith("Config") and hasattr(value, "get_text_config"):
            yield from parts_of_config(value)


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
    return f"{text}:{spec['low']}..{spec['high']}" if "low" in spec else text
