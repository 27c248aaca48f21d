"""What a pool's page table says, read back."""

from lmpoold.protocol.hashing import PrefixHash
from lmpoold.protocol.views import PageEntry
from workers.core.blocks import BlockPool


def snapshot(pool: BlockPool) -> dict[PrefixHash, PageEntry]:
    """The whole table; each entry must say what a lookup says."""
    table = pool.table()
    found = {name: pool.lookup(name) for name in table}
    assert found == table
    return table
