"""Control of request rates and concurrency."""
