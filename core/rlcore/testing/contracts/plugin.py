"""What a plugin of any kind must do."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from rlcore.plugins.config import PluginConfig, PluginRef
from rlcore.plugins.kinds import Kind
from rlcore.plugins.loading import config_class

HEAVY = ("torch", "transformers", "tokenizers", "ray", "vllm", "sglang", "deepspeed")
"""What a plugin's module may import inside functions only: a run's options are checked where none of it is needed."""

_PROBE = "import sys; from rlcore.plugins.loading import load; load(*sys.argv[1:]); print(*sys.modules)"


class PluginContract:
    """Names the plugin, as in ``use:`` of a manifest, and its options."""

    kind: ClassVar[Kind]
    plugin: ClassVar[str]
    """Entry-point name, or absolute path of a local file."""
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The plugin's own options, as in a manifest."""

    @classmethod
    def ref(cls) -> PluginRef:
        """The plugin with its options."""
        return PluginRef(cls.kind, cls.plugin, dict(cls.options))

    @classmethod
    def config(cls) -> PluginConfig:
        """The validated options."""
        return config_class(cls.kind, cls.plugin).model_validate(dict(cls.options))

    def test_options_are_documented(self) -> None:
        """The class of options and each field have their sentence, and a default or a value in ``options``."""
        config = config_class(self.kind, self.plugin)
        assert config.model_fields == {} or config.__doc__, f"{config.__name__} needs a docstring"
        bare = [name for name, field in config.model_fields.items() if not field.description]
        assert not bare, f"options without a sentence under them: {', '.join(bare)}"

    def test_ref_crosses_processes(self) -> None:
        """Name and options are plain values, all that a worker is sent."""
        assert pickle.loads(pickle.dumps(self.ref())) == self.ref()

    def test_module_imports_nothing_heavy(self) -> None:
        """Options can be listed and checked without importing the engine behind them."""
        probe = [sys.executable, "-c", _PROBE, self.kind, self.plugin]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        heavy = set(HEAVY) & set(done.stdout.split())
        assert not heavy, f"importing the plugin's module imports {', '.join(sorted(heavy))}; import inside the hook"
