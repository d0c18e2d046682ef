"""`prune_model`: a model on disk by the Rust pipeline, one in memory by torch."""


def prune_model(model, **options):
    raise NotImplementedError
