# shellcheck shell=bash
# Paths, messages and timed steps. The other scripts in this folder source it. All messages go to stderr.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
setup_dir=$root/.setup
mkdir -p "$setup_dir/log"

# dockerd and its helpers are in sbin, which is not on every user's PATH.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# uv, git and m3agent need a writable home folder.
if [[ ! -d ${HOME:-} || ! -w $HOME ]]; then
  export HOME=$setup_dir/home
  mkdir -p "$HOME"
fi

bold='' plain=''
if [[ -t 2 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' plain=$'\e[0m'
fi

say() { printf '%s\n' "$*" >&2; }

die() {
  say "${bold}error:${plain} $*"
  exit 1
}

# Some programs (apt-get) exit with 0 after Ctrl-C. The script must stop all the same.
trap 'say "interrupted."; exit 130' INT

# Report how long the current step has taken, until this process is killed or the script has ended.
ticker() {
  local text=$1 seconds=0
  # The sleep must not inherit our output: a program that reads our output would wait for the sleep to end.
  while sleep 2 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 2))
    if [[ -t 2 ]]; then
      printf '\r    %s (%d s)' "$text" "$seconds" >&2
    elif ((seconds % 10 == 0)); then
      say "    $text (still working after $seconds s)"
    fi
  done
}

# step TEXT COMMAND...: run COMMAND with its output in a log, and return its status. On failure, show the log's end.
step() {
  local text=$1 status=0 log watcher
  shift
  log=$setup_dir/log/${text//[^A-Za-z0-9]/-}.log
  say "==> $text"
  ticker "$text" 9>&- &
  watcher=$!
  # Descriptor 9 is the lock of setup.sh: a daemon that a package starts must not inherit it.
  "$@" >"$log" 2>&1 </dev/null 9>&- || status=$?
  kill "$watcher" 2>/dev/null
  wait "$watcher" 2>/dev/null || true
  [[ -t 2 ]] && printf '\r\e[K' >&2
  if ((status != 0)); then
    say "$text: failed with exit code $status; the end of $log:"
    tail -n 20 "$log" | sed 's/^/    /' >&2
  fi
  return "$status"
}
