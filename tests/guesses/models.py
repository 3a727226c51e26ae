"""Models of our own that take their inputs in one way each, and which guess at these they take.

    python models.py SCRIPT

SCRIPT is what `model-analyze trace-script` prints. A line for each model: its class, the number of the guess, the guess.
"""

import sys

import torch
from torch import nn
from transformers import PreTrainedConfig


class Stacked(nn.Module):
    """An image, and another below it: the config has the size of both."""

    config = PreTrainedConfig(image_size=[32, 16], num_channels=3, vocab_size=50)

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, pixel_values, prompt_pixel_values, prompt_masks):
        both = torch.cat([pixel_values, prompt_pixel_values], dim=2)
        if list(both.shape[-2:]) != self.config.image_size:
            raise ValueError("another size")
        return self.layer(both), self.layer(prompt_masks)


class OneFrame(nn.Module):
    """The patches of images, without a time."""

    config = PreTrainedConfig(patch_size=4, hidden_size=8)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(48, 8)

    def forward(self, pixel_values, grid_thw):
        found, at = [], 0
        for time, height, width in grid_thw.tolist():
            part = pixel_values[at : at + time * height * width]
            found.append(self.layer(part).reshape(height, width, 8))
            at += time * height * width
        if at != len(pixel_values):
            raise ValueError("patches of no image")
        return torch.cat(found)


class Placed(nn.Module):
    """The patches of an image with their columns and rows, nine of which become one."""

    config = PreTrainedConfig(patch_size=4, pooling_kernel_size=3)

    def __init__(self):
        super().__init__()
        self.layer, self.places = nn.Linear(48, 8), nn.Parameter(torch.randn(9, 8))

    def forward(self, pixel_values, pixel_position_ids):
        placed = self.layer(pixel_values) + self.places[pixel_position_ids].sum(-2)
        return placed.reshape(1, -1, 9, 8).mean(2)


class Documented(nn.Module):
    """Arguments of which only the documentation tells."""

    config = PreTrainedConfig(vocab_size=50, max_position_embeddings=16, num_slots=3, hidden_size=8)

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)

    def forward(self, input_ids, structure, levels):
        """
        structure (torch.LongTensor of shape `(batch_size)`):
            How many texts there are for each image.
        levels (`torch.FloatTensor` of shape `(batch_size, num_slots * 2, hidden_size)`):
            One for each slot.
        """
        texts = self.words(input_ids)[: structure[0]]
        if len(texts) != len(input_ids) or tuple(levels.shape) != (1, 6, 8):
            raise ValueError("another structure")
        return texts, levels


class Masked(nn.Module):
    """A mask of words beside an image."""

    config = PreTrainedConfig(vocab_size=50, max_position_embeddings=16, image_size=32)

    def __init__(self):
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 8), nn.Conv2d(3, 8, 3)

    def forward(self, pixel_values, class_input_ids, class_attention_mask):
        return self.layer(pixel_values), self.words(class_input_ids) * class_attention_mask[..., None]


class Prompted(nn.Module):
    """An optional mask of nothing that has words, as SAM's."""

    config = PreTrainedConfig(image_size=32)

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, pixel_values, input_masks=None):
        return self.layer(pixel_values)


class Spoken(nn.Module):
    """States in the place of sounds, for the encoder and for the decoder."""

    config = PreTrainedConfig(hidden_size=8, num_mel_bins=5, is_encoder_decoder=True)
    main_input_name = "input_values"

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, input_values, decoder_input_values=None):
        return self.layer(input_values), self.layer(decoder_input_values)


class Never(nn.Module):
    """Takes nothing: all is tried, but for what is no tensor."""

    config = PreTrainedConfig(image_size=32, hidden_size=8)

    def forward(self, pixel_values, output_hidden_states=None, states=None):
        raise ValueError("no")


class Unknown(nn.Module):
    config = PreTrainedConfig(image_size=32)

    def forward(self, pixel_values, structure):
        """
        structure (`torch.LongTensor` of shape `(batch_size, number_of_things)`):
            Nobody knows how many.
        """


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        space = {"__name__": "trace_script"}
        exec(compile(file.read(), "<trace>", "exec"), space)
    for kind in (Stacked, OneFrame, Placed, Documented, Masked, Prompted, Spoken, Never, Unknown):
        model = kind()
        try:
            guesses = space["inputs_of_config"](model)
        except space["Refused"] as error:
            print(f"{kind.__name__} refused: {error}\n{error.hint}")
            continue
        for index, specs in enumerate(guesses):
            values = {
                spec["name"]: space["sample"](spec, space["drawn_range"](spec, model), torch.device("cpu")) for spec in specs
            }
            try:
                model(**values)
            except (ValueError, RuntimeError, IndexError):
                continue
            print(kind.__name__, index, *map(space["spelling"], specs))
            break
        else:
            names = sorted({spec["name"] for specs in guesses for spec in specs})
            print(kind.__name__, "takes none of", *names)


if __name__ == "__main__":
    main()
