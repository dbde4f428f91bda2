"""Start and stop sandboxes with Docker, Podman or bubblewrap, or without isolation.

`sandbox` has the interface that all backends share, and `factory` chooses the backend.
"""
