"""The server of `tangram mcp`: tools that run in an environment. It needs the extra `mcp` of this distribution."""
