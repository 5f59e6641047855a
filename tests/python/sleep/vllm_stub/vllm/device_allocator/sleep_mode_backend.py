"""The interface of sleep-mode backends, with vLLM's names and signatures."""

import importlib
from abc import ABC, abstractmethod


class SleepModeBackend(ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abstractmethod
    def suspend(self, level=1): ...

    @abstractmethod
    def resume(self, tags=None): ...

    def state(self):
        return self._state

    def discard(self, tags):
        raise RuntimeError(f"{type(self).__name__} does not support it")

    @classmethod
    def is_supported(cls):
        return True

    @classmethod
    def preserves_communicators(cls):
        return False

    @classmethod
    def preserves_compiled_artifacts(cls):
        return False


class SleepModeBackendFactory:
    _registry = {}  # noqa: RUF012

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(f"{name} is registered")
        cls._registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def get_backend_class(cls, name):
        return cls._registry[name]()

    @classmethod
    def create_backend(cls, model_config):
        backend = cls.get_backend_class(model_config.sleep_mode_backend)
        if not backend.is_supported():
            raise ValueError(f"{model_config.sleep_mode_backend} is not supported")
        return backend()
