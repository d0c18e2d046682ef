"""Encoders, pruned: transformers loads what was written and computes what openwork does."""

from pathlib import Path

import pytest

import openwork

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ENCODERS = Path(__file__).parents[2] / "testdata" / "encoders"
TEXTS = ENCODERS / "texts.txt"
FOLDERS = sorted(folder.name for folder in ENCODERS.iterdir() if folder.is_dir())
POOLING = {"bert": "cls", "nomic": "max"}
LIMIT = {"bert-masked": 48}


def vectors(folder, name):
    """By transformers, in one padded batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, loading = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    assert not missing and not loading["mismatched_keys"]
    batch = tokenizer(
        TEXTS.read_text().splitlines(),
        padding=True,
        truncation=True,
        max_length=LIMIT.get(name, 20),
        return_token_type_ids=False,
        return_tensors="pt",
    )
    with torch.no_grad():
        hidden = model.eval()(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None]
    return {
        "cls": lambda: hidden[:, 0],
        "mean": lambda: (hidden * mask).sum(1) / mask.sum(1),
        "max": lambda: hidden.masked_fill(mask == 0, -1e9).max(1).values,
    }[POOLING.get(name, "mean")]()


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_computes_what_openwork_does(name, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the open work of a wall lets the light in and the wind out of it\n" * 30)
    out = tmp_path / "out"
    record = openwork.prune_model(
        ENCODERS / name, spec="2:4", method="sparsegpt", calib=text, out=out, eval=TEXTS,
        samples=9, seq_len=12, progress=False,
    )
    dense = ENCODERS / name
    if name == "nomic-own":
        # transformers reads Nomic's own spelling only with Nomic's own code.
        dense = tmp_path / "dense"
        openwork.prune_model(ENCODERS / name, spec="4:4", method="magnitude", calib=text, out=dense,
                             samples=9, seq_len=12, progress=False)
    cosine = torch.nn.functional.cosine_similarity(vectors(out, name), vectors(dense, name))
    found = record["similarity"]
    assert found["mean"] == pytest.approx(cosine.mean().item(), abs=1e-4)
    assert found["least"] == pytest.approx(cosine.min().item(), abs=1e-4)
    # A record of a decoder has perplexities here.
    assert record["evaluations"] == []


def test_an_encoder_is_no_language_model():
    with pytest.raises(openwork.OpenworkError, match="bert models are encoders"):
        openwork.Model(ENCODERS / "bert")
