"""What a client may send. Each limit has an error that names it."""

FILE_BYTES = 32 << 20
"""One picture file."""
REQUEST_BYTES = 64 << 20
"""One request with pictures."""
JSON_BYTES = 4 << 20
"""One request without."""
SESSION_BYTES = 4 << 10
"""One request with a token."""
FILES = 32
"""Files in one request."""
PIXELS = 50_000_000
"""Pixels to decode of one picture; a large JPEG is decoded at a fraction of its size."""
PICTURES = 5000
"""Pictures that wait to be learned."""
TRAY = 500
"""Pictures of unknown classes that are grouped."""
NAME = 200
"""Characters of a class name."""
WAITING_JOBS = 8
KEPT_JOBS = 50
"""Finished jobs that can still be asked for."""
STREAMS = 64
"""Clients that follow events at the same time."""
CONNECTIONS = 256
HEADER_SECONDS = 10
"""Time to send the headers of a request."""
BODY_SECONDS = 120
"""Time to send its body."""
SESSION_SECONDS = 5
"""Time to send a token; whoever sends one may be anybody."""
SESSIONS = 8
"""Requests with a token that one address may be sending at the same time."""
GUESSES = 10
"""Wrong tokens that one address may send at once; it gets one more per second."""
ADDRESSES = 4096
"""Addresses whose wrong tokens are remembered."""
SEND_SECONDS = 60
"""Time in which a client has to take a part of an answer."""
LOCK_SECONDS = 60
"""Time to wait for another process that is changing the model."""
SHUTDOWN_SECONDS = 10
"""Time for a running job when the server stops."""
