"""The connection to a Ray cluster, the same for studies and audits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ray_cluster(address: str, mistake: type[ValueError]) -> Iterator[Any]:
    """Connect to a cluster and give the `ray` module; a connection made here ends here.

    Args:
        address: as `ray.init` takes it; "auto" finds the cluster of this machine, "local" starts
            one in this process.
        mistake: the error to raise where Ray is not installed or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise mistake(
            "--ray needs Ray, which is not installed: python3 -m pip install 'sfumato[ray]'"
        ) from None
    began_here = not ray.is_initialized()
    if began_here:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise mistake(
                f"--ray {address}: no cluster answers ({error}). Start one with "
                "'ray start --head' and join it with 'ray start --address=HOST:6379'."
            ) from None
    try:
        yield ray
    finally:
        if began_here:
            ray.shutdown()
