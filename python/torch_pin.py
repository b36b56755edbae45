"""The wheel's dependency on torch: the minor release that it is built against. Without torch it has none."""

import importlib.metadata


def dynamic_metadata(field: str, settings: dict | None = None) -> list[str]:
    """Returns the value of `dependencies` for pyproject.toml."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [f"torch=={'.'.join(version.split('+')[0].split('.')[:2])}.*"]
