"""A pool lies in shared memory, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.shm import Pool
from forebay.shm.mounts import check_in_memory, kind_of_mount
from forebay.wire import HostError

from .processes import this_peer

MOUNTS = r"""
24 30 0:22 / /proc rw,nosuid shared:13 - proc proc rw
30 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
31 30 0:26 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw
32 30 0:27 / /mnt/two\040words\134040 rw - ramfs none rw
33 30 0:28 / /mnt/top rw - ext4 /dev/vdb rw
34 33 0:29 / /mnt/top rw master:1 propagate_from:2 - tmpfs - rw
a line of another kind
35 30 0:30 / /mnt/cut
"""


@pytest.mark.parametrize(
    ("mount", "kind"),
    [
        ("/", "ext4"),
        ("/dev/shm", "tmpfs"),
        (r"/mnt/two words\040", "ramfs"),
        ("/mnt/top", "tmpfs"),
        ("/mnt/cut", ""),
        ("/elsewhere", ""),
    ],
)
def test_the_file_system_on_top_of_a_mount_is_found(mount: str, kind: str) -> None:
    assert kind_of_mount(Path(mount), MOUNTS) == kind


def test_a_pool_on_another_file_system_is_refused_by_name_and_nothing_is_made() -> None:
    # Where no other one can be written to, this one is there as well.
    with pytest.raises(HostError) as caught:
        Pool(Path("/proc/self/pool"), slot_count=1, slot_bytes=1, remembered_keys=1, peer=this_peer(), epoch="e")
    assert str(caught.value) == (
        "the pool folder /proc/self/pool is not in shared memory: /proc is of the file system proc;"
        " limit tmpfs or ramfs; choose a folder in /dev/shm, or mount a tmpfs for it"
    )


def test_a_folder_in_shared_memory_is_taken_also_before_it_is_made(shm_dir: Path) -> None:
    check_in_memory(shm_dir)
    check_in_memory(shm_dir / "later" / "still")
