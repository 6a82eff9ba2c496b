"""Creation, listing and revocation of API keys. Only the hash of a key is stored; the key is returned once."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from arl_gateway.admin import key_queries, queries
from arl_gateway.audit_log.queries import insert_audit_log
from arl_gateway.http.auth import ROOT_PROJECT, Caller, KeyAuthenticator
from arl_store.tx import PostgresStore, Row, WriteTx
from arl_wire.admin.keys import ApiKey, CreateKeyRequest, CreateKeyResponse, KeyListResponse
from arl_wire.errors import Conflict, FieldError, Forbidden, NotFound, ValidationFailed

__all__ = ["KeyAdmin"]

"""The project that `tangram up` creates; its `admin:*` keys create the other projects."""
FIRST_KEY_SCOPES = ("actions:*", "admin:*")
"""Default scopes of a project's first key, which must be able to create further keys."""

PREFIX_LENGTH = 8
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class _WantedKey:
    """The key that a request asks for."""

    key: str = field(repr=False)
    project: str
    scopes: tuple[str, ...]
    expires_in_s: int | None

    @property
    def digest(self) -> bytes:
        return sha256(self.key.encode()).digest()

    def difference(self, row: Row) -> str | None:
        """Return how an existing key with this hash differs, or None if it is the wanted one and valid."""
        if row.project != self.project:
            return "exists in another project"
        if set(row.scopes) != set(self.scopes):
            return "exists with other scopes"
        if row.revoked_at is not None:
            return "was revoked"
        if row.is_expired:
            return "has expired"
        lifetime_s = round(row.lifetime_s) if row.lifetime_s is not None else None
        return "exists with another expiry (`expires_in_s`)" if lifetime_s != self.expires_in_s else None


class KeyAdmin:
    """Administration of keys. Each change and its audit log entry are written in one transaction."""

    def __init__(self, store: PostgresStore, authenticator: KeyAuthenticator) -> None:
        self._store = store
        self._authenticator = authenticator

    async def create(self, request: CreateKeyRequest, caller: Caller) -> CreateKeyResponse:
        """Create a key.

        A key cannot grant an admin scope that it lacks, so `admin:write` cannot create `admin:*`.
        """
        project = request.project or caller.project
        scopes = request.scopes or (FIRST_KEY_SCOPES if project != caller.project else ["actions:write"])
        _check_may_create(scopes, project, caller)
        if request.key is not None:
            _check_may_choose_key(caller)
        key = request.key or f"tk_{secrets.token_urlsafe(SECRET_BYTES)}"
        wanted = _WantedKey(key, project, tuple(sorted(set(scopes))), request.expires_in_s)
        async with self._store.write() as tx:
            row = await self._existing_or_new(tx, wanted, caller)
        return CreateKeyResponse(key=key, **_key_from_row(row).model_dump())

    async def _existing_or_new(self, tx: WriteTx, wanted: "_WantedKey", caller: Caller) -> Row:
        """Return the key. A request for the same key at the same time may have created it or its project."""
        if (known := await _existing_key(tx, wanted)) is not None:
            return known
        project_id = caller.project_id
        if wanted.project != caller.project:
            made = await queries.insert_project(tx, wanted.project)
            if made is None:
                if (known := await _existing_key(tx, wanted)) is not None:
                    return known
                raise _project_exists(wanted.project)
            _check_first_key(wanted.scopes)
            project_id = made
        row = await key_queries.insert_key(
            tx,
            project_id=project_id,
            prefix=wanted.key[:PREFIX_LENGTH],
            digest=wanted.digest,
            scopes=wanted.scopes,
            expires_in_s=wanted.expires_in_s,
        )
        if row is None:
            row = await _existing_key(tx, wanted)
            if row is None:
                raise Conflict("this key was created and removed meanwhile; repeat the request")
            return row
        await self._write_audit_log(tx, "key.create", row, caller)
        return row

    async def list(self, caller: Caller, *, cursor: int | None, limit: int) -> KeyListResponse:
        """List the keys of the caller's project, including revoked and expired keys."""
        async with self._store.read() as tx:
            rows = await key_queries.list_keys(tx, project_id=caller.project_id, before=cursor, limit=limit + 1)
        items = [_key_from_row(row) for row in rows[:limit]]
        return KeyListResponse(items=items, next_cursor=items[-1].id if len(rows) > limit else None)

    async def revoke(self, id: int, caller: Caller) -> ApiKey:
        """Revoke a key. This gateway refuses it from now on. A key that was already revoked is returned unchanged."""
        async with self._store.write() as tx:
            changed = await key_queries.revoke_key(tx, id=id, project_id=caller.project_id)
            row = await key_queries.key_by_id(tx, id=id, project_id=caller.project_id)
            if row is None:
                raise NotFound(f"API key {id} does not exist in this project. `tangram keys list` shows the keys")
            if changed:
                await self._write_audit_log(tx, "key.revoke", row, caller)
        self._authenticator.invalidate(id)
        return _key_from_row(row)

    async def _write_audit_log(self, tx: WriteTx, verb: str, row: Row, caller: Caller) -> None:
        detail = {"project": row.project, "prefix": row.prefix, "scopes": row.scopes}
        await insert_audit_log(
            tx,
            project_id=row.project_id,
            api_key_id=caller.key_id,
            verb=verb,
            target=f"key:{row.id}",
            detail=json.dumps(detail),
        )


def _check_may_create(scopes: Sequence[str], project: str, caller: Caller) -> None:
    if project != caller.project and not (caller.is_root and "admin:*" in caller.scopes):
        message = f"only `admin:*` of project `{ROOT_PROJECT}` can create the first key of another project"
        raise Forbidden(message, errors=[FieldError(field="project", message=message)])
    lacking = sorted(scope for scope in scopes if scope.startswith("admin:") and not caller.has_scope(scope))
    if lacking:
        message = f"this API key lacks {', '.join(lacking)} and cannot grant it to another key"
        raise Forbidden(message, errors=[FieldError(field="scopes", message=message)])


def _check_may_choose_key(caller: Caller) -> None:
    if not caller.has_scope("admin:*"):
        message = "only a key with `admin:*` can choose the new key itself; leave the field out"
        raise Forbidden(message, errors=[FieldError(field="key", message=message)])


async def _existing_key(tx: WriteTx, wanted: "_WantedKey") -> Row | None:
    """Return the key if a request has created it before. Raises `Conflict` if it differs or is no longer valid."""
    row = await key_queries.key_with_hash(tx, wanted.digest)
    if row is None:
        return None
    if (difference := wanted.difference(row)) is not None:
        message = f"this key {difference}; choose another key"
        raise Conflict(message, errors=[FieldError(field="key", message=message)])
    return row


def _project_exists(name: str) -> Conflict:
    message = f"project {name!r} already exists; create further keys with one of its own keys that has `admin:write`"
    return Conflict(message, errors=[FieldError(field="project", message=message)])


def _check_first_key(scopes: Sequence[str]) -> None:
    if not {"admin:write", "admin:*"} & set(scopes):
        message = (
            "the first key of a project needs `admin:write` or `admin:*`, because only such a key can create further"
            " ones"
        )
        raise ValidationFailed(message, errors=[FieldError(field="scopes", message=message)])


def _key_from_row(row: Row) -> ApiKey:
    return ApiKey(
        id=row.id,
        project=row.project,
        prefix=row.prefix,
        fingerprint=row.fingerprint,
        scopes=list(row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
