# Without this stub, basedpyright reads all models of timm, which takes a third of its time.
from typing import Any

def __getattr__(name: str) -> Any: ...
