"""The installation that owns a database: the one whose passwords the services' roles have."""

import json
from collections.abc import Mapping
from hashlib import sha256

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["ForeignInstallation", "claim_database"]

SELECT_PASSWORDS = text("select passwords::text from installation")
UPSERT_PASSWORDS = text("""
    insert into installation (passwords)
    values (cast(:passwords as jsonb))
        on conflict (only_row) do update
       set passwords = excluded.passwords
""")


class ForeignInstallation(RuntimeError):
    """The roles of the database's services have passwords from another state directory."""

    def __init__(self) -> None:
        super().__init__(
            "the database belongs to another installation. Stop that installation first and start from its state"
            " directory (--dir or TANGRAM_DIR), or choose another database. If the other installation is no longer"
            " needed, take its database over with --take-over"
        )


async def claim_database(connection: AsyncConnection, passwords: Mapping[str, str], *, take_over: bool) -> None:
    """Record this installation as the owner of the database.

    Raises `ForeignInstallation` if it belongs to another one and `take_over` is False. Services that only one of the
    two versions has are ignored. Digests suffice, because passwords are random.
    """
    ours = {service: sha256(password.encode()).hexdigest() for service, password in passwords.items()}
    known = json.loads((await connection.execute(SELECT_PASSWORDS)).scalar() or "{}")
    if not take_over and any(known[service] != ours[service] for service in known.keys() & ours.keys()):
        raise ForeignInstallation
    await connection.execute(UPSERT_PASSWORDS, {"passwords": json.dumps({**known, **ours}, sort_keys=True)})
