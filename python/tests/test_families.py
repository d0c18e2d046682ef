"""Every family, pruned: transformers loads what was written and computes what openwork does."""

import math
from pathlib import Path

import pytest

import openwork

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODELS = Path(__file__).parents[2] / "testdata" / "models"
TEXT = "the open work of a wall lets the light in and the wind out " * 20
WINDOW = 16
FOLDERS = sorted(folder.name for folder in MODELS.iterdir())
EXPERTS = [
    "gemma4-e2b-moe", "gemma4-moe", "gpt-oss", "gpt-oss-mxfp4", "mixtral", "olmoe", "qwen2-moe", "qwen3-moe",
    "qwen3.5-moe",
]


def perplexity(folder):
    """By transformers, over windows that do not overlap."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # Its faster products of experts need widths that are multiples of 16 bytes.
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager", output_loading_info=True
    )
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    ids = torch.tensor(tokenizer(TEXT).input_ids)
    ids = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    with torch.no_grad():
        logits = model.eval()(ids, use_cache=False).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    return math.exp(loss.item())


def prune(name, spec, place, **options):
    text = place / "text.txt"
    text.write_text(TEXT)
    sizes = dict(samples=4, seq_len=WINDOW, single_tokens=0, progress=False)
    evaluation = dict(eval=text, eval_seq_len=WINDOW)
    out = place / "out"
    record = openwork.prune_model(
        MODELS / name, spec=spec, calib=text, out=out, **sizes, **evaluation, **options
    )
    return out, record["evaluations"][-1]["token_perplexity"]


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_computes_what_openwork_does(name, tmp_path):
    out, ours = prune(name, "2:4", tmp_path, method="sparsegpt")
    assert perplexity(out) == pytest.approx(ours, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in FOLDERS if "e2b" not in name])
def test_transformers_loads_a_model_with_fewer_layers(name, tmp_path):
    out, ours = prune(name, "layers keep 1", tmp_path)
    assert perplexity(out) == pytest.approx(ours, rel=1e-4)


@pytest.mark.parametrize("name", EXPERTS)
def test_transformers_loads_a_model_with_fewer_experts(name, tmp_path):
    out, ours = prune(name, "experts keep 4", tmp_path)
    assert perplexity(out) == pytest.approx(ours, rel=1e-4)


@pytest.mark.parametrize("name", [*EXPERTS, "gemma4-e2b"])
def test_transformers_loads_a_model_with_narrower_experts(name, tmp_path):
    out, ours = prune(name, "mlp keep 75%", tmp_path, method="s-obs", remove=True)
    assert perplexity(out) == pytest.approx(ours, rel=1e-4)


def test_a_run_with_shared_keys_resumes_to_the_same_bytes(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    ask = dict(spec="2:4", method="sparsegpt", calib=tmp_path / "text.txt", samples=8, seq_len=WINDOW)
    seen = []

    def stop(event):
        seen.extend([event] if event["event"] == "layer" else [])
        if len(seen) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        openwork.prune_model(MODELS / "gemma4-e2b-moe", out=tmp_path / "stopped", progress=stop, **ask)
    for out, resume in [("stopped", True), ("whole", False)]:
        openwork.prune_model(MODELS / "gemma4-e2b-moe", out=tmp_path / out, resume=resume, progress=False, **ask)
    files = sorted(file.name for file in (tmp_path / "whole").glob("*.safetensors"))
    assert len(files) == 4
    for name in files:
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
