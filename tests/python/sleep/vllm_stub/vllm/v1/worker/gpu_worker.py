"""A worker that requests a pool by a tag and puts its memory to sleep as vLLM's does."""

from contextlib import nullcontext

from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory


class Worker:
    pools_of_vllm = 0

    def _maybe_get_memory_pool_context(self, tag):
        Worker.pools_of_vllm += 1
        return nullcontext()

    @property
    def sleep_mode_backend(self):
        if self._sleep_mode_backend is None:
            config = self.vllm_config.model_config
            self._sleep_mode_backend = SleepModeBackendFactory.create_backend(config)
        return self._sleep_mode_backend

    def discard(self, tags):
        self.sleep_mode_backend.discard(tags)

    def sleep(self, level=1):
        saved = {}
        if level == 2:
            saved = {name: b.cpu().clone() for name, b in self.model_runner.model.named_buffers()}
        self._sleep_saved_buffers = saved
        self.sleep_mode_backend.suspend(level)

    def wake_up(self, tags=None):
        self.sleep_mode_backend.resume(tags)
        if (tags is None or "weights" in tags) and self._sleep_saved_buffers:
            for name, buffer in self.model_runner.model.named_buffers():
                buffer.data.copy_(self._sleep_saved_buffers[name].data)
            self._sleep_saved_buffers = {}
