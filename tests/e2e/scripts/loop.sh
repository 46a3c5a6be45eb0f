#!/bin/sh
# Counts to a file every tenth of a second until $OUTPUT/stop is there: number, a value made of it, when.
number=0
while [ ! -e "$OUTPUT/stop" ]; do
  echo "$number $((number * 37 % 101)) $(date +%s.%N)" >>"$OUTPUT/lines"
  number=$((number + 1))
  sleep 0.1
done
