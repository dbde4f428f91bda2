#!/usr/bin/env bash
# Install the command m3agent for this user, from this checkout, in an environment of its own.
#
#   scripts/install.sh [EXTRAS]
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cd "$root"
PATH=$setup_dir/uv/bin:$PATH
UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=true step "installing m3agent" \
  uv tool install --force --reinstall-package m3agent ".${1:+[$1]}"
grep '^warning: The package' "$setup_dir/log/installing-m3agent.log" >&2 || true # an extra that does not exist
bin=$(uv tool dir --bin)
say "The command is $bin/m3agent."
[[ $(command -v m3agent) == "$bin/m3agent" ]] || say "Put that folder first on your PATH: export PATH=\"$bin:\$PATH\""
