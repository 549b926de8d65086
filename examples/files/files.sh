#!/bin/sh
# Lists and reads the files of one folder. LMOSD_ACTION names the action, standard input is its input.
name=$(cat)
case $LMOSD_ACTION in
  list) ls "$FILES" ;;
  read)
    case $name in
      '' | */* | .*) echo "expected the name of a file in the folder, got \"$name\"" >&2; exit 1 ;;
    esac
    cat "$FILES/$name"
    ;;
esac
