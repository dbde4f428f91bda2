"""Start and stop sandboxes with Docker, Podman or bubblewrap.

`sandbox` has the interface that all backends share, and `factory` chooses the backend.
"""
