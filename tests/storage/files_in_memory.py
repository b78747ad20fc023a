"""A file system in a dict."""


class MemoryFile:
    def __init__(self, content: bytearray) -> None:
        self.content = content

    def size(self) -> int:
        return len(self.content)

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self.content[position : position + length])

    def read_cached_at(self, position: int, length: int) -> bytes | None:
        return self.read_at(position, length)

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self.content[position : position + len(data)] = data

    def drop_cached(self, position: int, length: int) -> None:
        pass

    def truncate(self, size: int) -> None:
        del self.content[size:]

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryLock:
    def release(self) -> None:
        pass


class MemoryFiles:
    """A directory exists if a path starts with it."""

    def __init__(self) -> None:
        self.contents: dict[str, bytearray] = {}

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if path not in self.contents:
            if not create:
                raise FileNotFoundError(path)
            self.contents[path] = bytearray()
        return MemoryFile(self.contents[path])

    def exists(self, path: str) -> bool:
        return path in self.contents or self.is_directory(path)

    def is_directory(self, path: str) -> bool:
        return any(other.startswith(path + "/") for other in self.contents)

    def size(self, path: str) -> int:
        return len(self.contents[path])

    def modified_ms(self, path: str) -> int:
        return 0

    def list_directory(self, path: str) -> list[str]:
        start = len(path.rstrip("/")) + 1
        inside = [other[start:] for other in self.contents if other.startswith(path + "/")]
        return sorted({other.split("/")[0] for other in inside})

    def make_directory(self, path: str) -> None:
        pass

    def remove_directory(self, path: str) -> None:
        pass

    def rename(self, old: str, new: str) -> None:
        if old not in self.contents:
            raise FileNotFoundError(old)
        self.contents[new] = self.contents.pop(old)

    def unlink(self, path: str) -> None:
        if path not in self.contents:
            raise FileNotFoundError(path)
        del self.contents[path]

    def sync_directory(self, path: str) -> None:
        pass

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def total_bytes(self, path: str) -> int:
        return 1 << 41

    def identity(self, path: str) -> str:
        return path

    def lock(self, path: str) -> MemoryLock:
        return MemoryLock()
