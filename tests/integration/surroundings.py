"""What tests of whole programs take from the environment: where fetched models are, and which variables to keep away."""

import os
from pathlib import Path


def model_path(name):
    """A fetched model: $OCTET_MODELS_DIR, else ${XDG_CACHE_HOME:-~/.cache}/octet/models; there or not."""
    folder = os.environ.get("OCTET_MODELS_DIR")
    if not folder:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", "/"), ".cache")
        folder = os.path.join(cache, "octet", "models")
    return Path(folder) / name


def clean_env(*others):
    """Without what would change which backends are found, and without the other variables named."""
    return {k: v for k, v in os.environ.items() if k not in ("OCTET_BACKENDS", "OCTET_BACKEND_PATH", *others)}
