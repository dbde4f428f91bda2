#!/usr/bin/env bash
# Set up what m3agent needs: uv (in .setup/), the Python packages of uv.lock (in .venv/) and a sandbox engine.
#
#   scripts/setup.sh [--plan] [--lint] [python|all]
#
# --plan     print what would be installed and stop
# --lint     install the tools of `make lint` as well
# python     install only the Python packages
# all        install a sandbox engine as well (the default)
# SETUP=no   install nothing system-wide
# SETUP=yes  do not ask before installing a Docker engine
#
# A further run reuses what is already installed.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

uv_version=0.13.8
uv_oldest=0.8.0 # older versions cannot read this uv.lock

plan_only=no
groups=()
want=all
for argument in "$@"; do
  case $argument in
    --plan) plan_only=yes ;;
    --lint) groups=(--group lint) ;;
    python | all) want=$argument ;;
    *) die "scripts/setup.sh knows --plan, --lint, python and all, not '$argument'." ;;
  esac
done

# ---- What is installed -----------------------------------------------------------------------------------------

find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$name" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  return 1
}

find_uv() {
  local found
  if "$setup_dir/uv/bin/uv" --version >/dev/null 2>&1; then
    echo "$setup_dir/uv/bin/uv"
  elif found=$(uv --version 2>/dev/null) &&
    [[ $(printf '%s\n' "$uv_oldest" "$(cut -d' ' -f2 <<<"$found")" | sort -V | head -n 1) == "$uv_oldest" ]]; then
    command -v uv
  else
    return 1
  fi
}

has_module() { "$python" -c "import $1" 2>/dev/null; }
has_command() { command -v "$1" >/dev/null; }
is_root() { ((EUID == 0)); }
docker_answers() { "$python" scripts/docker_ping.py; }

# Run it, because user namespaces are often forbidden where it is installed. Drop root first, as m3agent does.
# bwrap_said is why it does not work.
bwrap_works() {
  local unprivileged=()
  has_command bwrap || { bwrap_said="is not installed" && return 1; }
  ! is_root || unprivileged=(setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs)
  bwrap_said=$(cd / && "${unprivileged[@]}" bwrap --unshare-all --unshare-user --disable-userns --die-with-parent \
    --ro-bind / / --proc /proc --dev /dev true 2>&1) && return
  bwrap_said="does not work here ($(tail -n 1 <<<"$bwrap_said"))"
  return 1
}

python=$(find_python) ||
  die "m3agent needs Python 3.11 or newer and there is none on PATH; install one (Debian 12 and Ubuntu 24.04: apt-get install python3)."
for program in git flock; do
  has_command "$program" || die "m3agent needs $program and it is not on PATH; install it with your package manager."
done

# ---- What is missing -------------------------------------------------------------------------------------------

packages=() # to install by apt-get
plan=()     # lines to print
# docker: it answers; start: installed, to be started; install: to be installed; declined: the user said no; bwrap: use
# bubblewrap; none: not requested
engine=docker

uv=$(find_uv) || uv=''
if [[ -z $uv ]]; then
  if ! has_module ensurepip && ! has_module pip; then
    if [[ ${SETUP:-} == no ]] || ! is_root || ! has_command apt-get; then
      die "uv is not here and this Python has neither ensurepip nor pip to get it with; install uv, or python3-venv (apt-get install python3-venv), and run this again."
    fi
    packages+=(python3-venv)
  fi
  plan+=("install uv $uv_version into .setup/ (60 MB)")
fi
[[ -x .venv/bin/m3agent ]] || plan+=("install the Python packages of uv.lock into .venv/ (0.8 GB with the tests' tools; about half a minute)")

no_engine() {
  die "no sandbox: $1, and bubblewrap $bwrap_said; $2."
}

# use_bwrap REASON ADVICE: use bubblewrap and print the reason; without it, fail with the reason and the advice.
use_bwrap() {
  bwrap_works || no_engine "$1" "$2"
  engine=bwrap
  say "$1: bubblewrap will serve as the sandbox."
}

choose_engine() {
  local answer=0
  docker_answers || answer=$?
  if ((answer == 0)); then
    engine=docker
  elif ((answer == 2)); then
    use_bwrap "a Docker engine is here but its socket refuses this user" \
      "join the group that owns the socket (usually: usermod -aG docker \$USER, then log in again) or run as root"
  elif [[ -n ${DOCKER_HOST:-} ]]; then
    use_bwrap "nothing answers at DOCKER_HOST=$DOCKER_HOST" "start that engine or unset DOCKER_HOST"
  elif [[ ${SETUP:-} == no ]]; then
    use_bwrap "no Docker engine answers and SETUP=no forbids installing or starting one" \
      "start Docker, install bubblewrap, or leave SETUP=no away"
  elif ! is_root; then
    use_bwrap "no Docker engine answers and only root can install or start one" \
      "run this as root, or install Docker or bubblewrap"
  elif has_command dockerd; then
    engine=start
  elif has_command apt-get; then
    engine=install
  else
    use_bwrap "no Docker engine answers and there is no apt-get to install one with" \
      "install Docker (docs.docker.com/engine/install) or bubblewrap"
  fi
}

if [[ $want == all ]]; then
  choose_engine
  case $engine in
    install)
      packages+=(docker.io iptables ca-certificates bubblewrap)
      plan+=("install a Docker engine (with bubblewrap as a second choice; 260 MB), and start it")
      ;;
    start) plan+=("start the Docker engine, which is installed but does not answer") ;;
  esac
else
  engine=none
fi

((${#packages[@]} == 0)) || plan+=("for that, install system-wide by apt-get: ${packages[*]} and what they depend on")

if ((${#plan[@]} > 0)); then
  say "${bold}m3agent set-up${plain} will"
  printf '  - %s\n' "${plan[@]}" >&2
  ((${#packages[@]} == 0)) || say "Everything else goes into this checkout and the cache of uv. SETUP=no forbids system-wide installs."
fi
[[ $plan_only == no ]] || exit 0

# ---- Install ---------------------------------------------------------------------------------------------------

if [[ $engine == install && ${SETUP:-} != yes && -t 0 && -t 2 ]]; then
  read -rp "Install a Docker engine on this machine? (n: bubblewrap alone will do) [Y/n] " reply ||
    die "no answer, so nothing was installed; SETUP=yes installs without asking, SETUP=no continues without installing."
  if [[ ! ${reply:-y} =~ ^[Yy] ]]; then
    engine=declined
    if [[ " ${packages[*]} " == *" python3-venv "* ]]; then packages=(python3-venv); else packages=(); fi
    has_command bwrap || packages+=(bubblewrap)
  fi
fi

exec 9>"$setup_dir/lock"
if ! flock -n 9; then
  say "Another set-up of this checkout is running; waiting for it."
  flock 9
fi

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update && apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

install_uv() {
  if has_module pip; then # half as long as a virtual environment takes
    # PEP 668 does not forbid a target folder: it is outside every Python installation.
    PIP_REQUIRE_VIRTUALENV=0 PIP_USER=0 "$python" -m pip install --upgrade --target "$setup_dir/uv" "uv==$uv_version"
  else
    "$python" -m venv --clear "$setup_dir/uv" && "$setup_dir/uv/bin/python" -m pip install "uv==$uv_version"
  fi
}

sync_python() {
  # Use the machine's own interpreter. Only the first run chooses it.
  local choose=()
  [[ -x .venv/bin/python ]] || choose=(--python "$python")
  # --inexact keeps what an earlier --lint has installed.
  UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=true UV_COMPILE_BYTECODE=1 \
    "$uv" sync --locked --inexact "${groups[@]}" "${choose[@]}"
}

# wait_for_docker PID: wait until the engine answers, process PID has ended or a minute has passed.
wait_for_docker() {
  local tries
  for ((tries = 0; tries < 120; tries++)); do
    docker_answers && return
    kill -0 "$1" 2>/dev/null || return
    sleep 0.5
  done
  return 1
}

run_dockerd() {
  local log=$setup_dir/dockerd.log
  wait_for_docker "$("$python" scripts/start_dockerd.py "$log" "$@")" && return
  tail -n 15 "$log"
  return 1
}

start_docker() {
  local running
  : >"$setup_dir/dockerd.log"
  if [[ -d /run/systemd/system ]]; then
    systemctl start docker && wait_for_docker $$
  elif running=$(cat /var/run/docker.pid 2>/dev/null) && kill -0 "$running" 2>/dev/null; then
    wait_for_docker "$running" # another process has just started it
  elif ! run_dockerd; then
    # Some machines do not let dockerd filter packets. The sandbox has no network, so it does not need that.
    run_dockerd --bridge=none --iptables=false && bridge=none
  fi
}

# If we waited for another run of set-up, that run may already have done all of this.
if ((${#packages[@]} > 0)); then
  step "installing ${packages[*]}" apt_install "${packages[@]}" ||
    die "apt-get could not install ${packages[*]}; install a Docker engine or bubblewrap, and uv, by other means, then run this with SETUP=no."
fi
if [[ -z $uv ]]; then
  uv=$(find_uv) || {
    step "getting uv $uv_version" install_uv || die "uv could not be installed; is the Python package index reachable from here?"
    uv=$(find_uv) || die "uv was installed into .setup/uv but does not run on this machine."
  }
fi
if [[ -x .venv/bin/m3agent ]]; then
  sync_python >"$setup_dir/log/sync.log" 2>&1 </dev/null 9>&- || step "updating the Python packages" sync_python ||
    die "the Python packages of uv.lock could not be installed (see above); \`make clean\` and a new try start from nothing."
else
  step "installing the Python packages" sync_python ||
    die "the Python packages of uv.lock could not be installed; is the Python package index reachable from here?"
fi
if [[ $engine == install || $engine == start ]] && ! docker_answers; then
  bridge=default
  step "starting the Docker engine" start_docker ||
    use_bwrap "the Docker engine does not start here" "the end of its log is above, all of it in .setup/dockerd.log or the journal"
  [[ $bridge == default ]] || say "The Docker engine runs without a network bridge, which this machine does not let it make."
elif [[ $engine == declined ]]; then
  use_bwrap "no Docker engine, as you said" "user namespaces seem to be forbidden on this machine"
fi
if ((${#plan[@]} > 0)); then
  say "Set-up is done; further runs reuse it."
fi
