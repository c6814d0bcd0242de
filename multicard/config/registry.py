"""Puts the schemas where the files under conf/ look for them."""

from hydra.core.config_store import ConfigStore


def register() -> None:
    """Put the schemas where the files under `conf/` look for them (`schema/...`)."""
    from multicard.config import llm, vision

    store = ConfigStore.instance()
    store.store(group="schema", name="vision", node=vision.VisionConfig)
    store.store(group="schema", name="llm", node=llm.LlmConfig)
    for group, options in (*vision.SCHEMAS.items(), *llm.SCHEMAS.items()):
        for name, node in options.items():
            store.store(group=f"schema/{group}", name=name, node=node)
