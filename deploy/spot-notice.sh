#!/usr/bin/env bash
# Waits until the cloud announces that it will take this spot machine away, and then ends with 0:
#
#   spot-notice.sh [aws|gcp|azure] && systemctl stop periplus-agent
#
# Without an argument the cloud is the one that the machine's firmware names. AWS announces it 2 minutes ahead, Google and
# Azure 30 seconds. POLL_S is the pause between two questions, METADATA the address that is asked.
set -uo pipefail

cloud=${1:-}
if [ -z "$cloud" ]; then
  case "$(cat /sys/class/dmi/id/sys_vendor 2>/dev/null)" in
    Amazon*) cloud=aws ;;
    Google*) cloud=gcp ;;
    Microsoft*) cloud=azure ;;
  esac
fi
metadata=${METADATA:-http://169.254.169.254}

ask() { curl --silent --fail --max-time 5 --noproxy '*' "$@"; }

announced() {
  case "$cloud" in
    aws)
      local session
      session=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token") || return 1
      ask -H "X-aws-ec2-metadata-token: $session" "$metadata/latest/meta-data/spot/instance-action" >/dev/null
      ;;
    gcp)
      [ "$(ask -H 'Metadata-Flavor: Google' "$metadata/computeMetadata/v1/instance/preempted")" = TRUE ]
      ;;
    azure)
      ask -H 'Metadata: true' "$metadata/metadata/scheduledevents?api-version=2020-07-01" | grep -q '"Preempt"'
      ;;
  esac
}

case "$cloud" in
  aws | gcp | azure) ;;
  *)
    echo "spot-notice.sh: no cloud that announces the end of a machine: '$cloud'; give aws, gcp or azure" >&2
    exit 2
    ;;
esac
until announced; do sleep "${POLL_S:-5}"; done
echo "spot-notice.sh: $cloud will take this machine away" >&2
