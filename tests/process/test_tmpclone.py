import time, asyncpg
pytest_plugins=["support.postgres"]
async def test_clone(clone_database):
    for _ in range(3):
        t=time.monotonic(); u=await clone_database(); print("clone", time.monotonic()-t, u)
        c=await asyncpg.connect(u); print(await c.fetch("select tablename from pg_tables where schemaname='public'")); await c.close()
async def test_role(database):
    from arl_store.migrate import role_url
    from support.postgres import PASSWORDS
    c=await asyncpg.connect(role_url(database,"gateway",PASSWORDS["gateway"])); print(await c.fetchval("select current_user")); await c.close()
