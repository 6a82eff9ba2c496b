import asyncio, time
from support.system import running_system
from support.postgres import *

async def test_clone_time(clone_database):
    for _ in range(3):
        t=time.monotonic(); await clone_database(); print("clone", time.monotonic()-t)

async def test_two_actions(database):
    t=time.monotonic()
    async with running_system(database, cores=4) as system, system.client() as c:
        print("up", time.monotonic()-t)
        for i in range(4):
            t=time.monotonic()
            r = await c.post("/v1/actions?wait=10", json={"task":"t","trajectory":"x","environment":{"scope":"trajectory"},"argv":["true"]})
            print(r.status_code, time.monotonic()-t, {k:v for k,v in r.json().items() if k in("state","outcome","reason","message")})
        async def body():
            for _ in range(70):
                yield b" "*(1<<20)
        r = await c.post("/v1/actions", content=body(), headers={"content-type":"application/json"})
        print(r.status_code, r.text)
        t=time.monotonic()
    print("down", time.monotonic()-t)
