"""`model=NAME` for each classifier of a library: Hydra finds an option there, although no file has it."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from multicard.vision import model_names


class NamedModels(ConfigSource, SearchPathPlugin):
    """Options of the group `model` that set `model.name` alone. Hydra asks here after the files."""

    def __init__(self, provider: str = "", path: str = "library://") -> None:
        super().__init__(provider, path)

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("multicard", "library://")

    @staticmethod
    def scheme() -> str:
        return "library"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") == "model"

    def is_config(self, config_path: str) -> bool:
        return config_path.startswith("model/") and model_names.has(config_path[6:].removesuffix(".yaml"))

    def load_config(self, config_path: str) -> ConfigResult:
        option = {"defaults": ["/schema/model/mobilenet_v2@_here_"], "name": config_path[6:].removesuffix(".yaml")}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(option), {"package": "model"})

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return [*model_names.every()] * (self.is_group(config_path) and results_filter != ObjectType.GROUP)
