"""How often weights are cut as the tensor-parallel plans of transformers' own configurations cut them.

    python benches/tp_plans.py COMMAND FOLDER [MODEL_TYPE …]

Makes a small decoder of each model type whose configuration has a `base_model_tp_plan`, traces it, lets the command share its
layers among two devices, and compares each rule that cuts a weight with the plan's `cuts`. Prints a line for each type, what
differs, and last the share of rules that agree. Rules without a cut of their own (norms that sum gradients, experts) are not
counted, nor those for modules that a small model does not have. What could not be made or traced is named.
"""

import json
import re
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
import transformers
import yaml
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fixtures"))
import zoo

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()

# The dimension of a weight that a style cuts.
DIMENSIONS = {"colwise": 0, "colwise_gather_output": 0, "colwise_rep": 0, "packed_colwise": 0, "embedding_rowwise": 0}
DIMENSIONS |= {"rowwise": 1, "rowwise_split_input": 1, "rowwise_rep": 1, "packed_rowwise": 1, "embedding_colwise": 1}
MOST_PARAMETERS = 50_000_000
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": 128, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64, "use_cache": False, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "attention_dropout": 0.0, "sliding_window": 16,
}  # fmt: skip


def small(kind):
    """Returns a small decoder of a model type."""
    config_class = CONFIG_MAPPING[kind]
    known = set(config_class().to_dict())
    config = config_class(**{name: value for name, value in SMALL.items() if name in known})
    with torch.device("meta"):
        count = sum(one.numel() for one in transformers.AutoModelForCausalLM.from_config(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count:,} parameters where sizes are as small as can be told")
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def compared(command, folder, kind):
    """Returns rules as (module, style, our dimension or None)."""
    model = small(kind)
    archive, plan = folder / f"{kind}.pt", folder / f"{kind}.yaml"
    ids = torch.randint(3, 100, (2, 16))
    traced, outputs = zoo.SCRIPT.trace(model, [(None, ids)])
    zoo.SCRIPT.save(traced, str(archive), zoo.SCRIPT.record(traced, about={}, training=False, outputs=outputs))
    asked = [command, "plan", archive, "--devices", "2xh100", "--tensor-parallel", "2", "-o", plan]
    plan.unlink(missing_ok=True)
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=120)
    archive.unlink()
    if ran.returncode:
        raise RuntimeError(ran.stderr.strip().splitlines()[0])
    cuts = yaml.safe_load(plan.read_text()).get("cuts", {})
    ours = {name.removesuffix(".weight"): cut["dim"] for name, cut in cuts.items()}
    modules = {re.sub(r"\.\d+(?=\.|$)", ".*", name): module for name, module in model.named_modules()}
    rules = []
    for rule, style in model.config.base_model_tp_plan.items():
        path = f"{model.base_model_prefix}.{rule}"
        if style in DIMENSIONS and isinstance(modules.get(path), torch.nn.Linear | torch.nn.Embedding):
            rules.append((path, style, ours.get(path)))
    return rules


def main():
    command, folder, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = Path(folder)
    decoders = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    kinds = kinds or sorted(kind for kind in decoders if getattr(CONFIG_MAPPING[kind], "base_model_tp_plan", None))
    agreeing, counted, unlike, failed, types = 0, 0, Counter(), {}, 0
    for kind in kinds:
        try:
            rules = compared(command, folder, kind)
        except Exception as error:
            failed[kind] = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]
            print(f"{kind}: not made: {failed[kind]}", flush=True)
            continue
        types += bool(rules)
        agree = [rule for rule in rules if rule[2] == DIMENSIONS[rule[1]]]
        agreeing, counted = agreeing + len(agree), counted + len(rules)
        for path, style, ours in rules:
            if ours != DIMENSIONS[style]:
                unlike[f"{path.rsplit('.', 1)[-1]} ({style}): ours {'whole' if ours is None else f'dimension {ours}'}"] += 1
        told = [f"{path} ({style}): ours {ours}" for path, style, ours in rules if ours != DIMENSIONS[style]]
        print(f"{kind}: {len(agree)} of {len(rules)}{'; ' if told else ''}{', '.join(told)}", flush=True)
    for what, times in unlike.most_common():
        print(f"  unlike in {times}: {what}")
    print(f"{agreeing} of {counted} rules agree ({100 * agreeing / max(counted, 1):.1f} %), {types} model types, {len(failed)} not made or traced")
    (folder / "answer.json").write_text(json.dumps({"agree": agreeing, "rules": counted, "types": types, "failed": failed, "unlike": unlike}, indent=1))


if __name__ == "__main__":
    main()
