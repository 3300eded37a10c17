import os
from pathlib import Path


def home() -> Path:
    """Stayer's own folder (runs, datasets, tokenizers, services): ``$STAYER_HOME``, else ``.stayer`` here."""
    return Path(os.environ.get("STAYER_HOME") or ".stayer").expanduser().resolve()
