"""The cluster behind the gateway, asked over asyncio connections with Culver's own codecs."""
