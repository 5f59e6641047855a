"""Stands in for vLLM's own allocator: it has no memory until a test gives it some."""


class CuMemAllocator:
    instance = None

    def __init__(self, usage):
        self.usage = usage
        self.calls = []

    def get_current_usage(self):
        return self.usage

    def sleep(self, offload_tags):
        self.calls.append(["sleep", list(offload_tags)])

    def wake_up(self, tags):
        self.calls.append(["wake_up", tags])

    def discard(self, tags):
        self.calls.append(["discard", list(tags)])
