# Just enough of MongoDB's wire protocol (OP_MSG, BSON) to initiate a replica set, to make its first user and to ask who
# is primary, so that starting a server needs neither mongosh nor a driver. Messages are built and read as strings of hex digits.
# shellcheck shell=bash disable=SC2154 # common.sh, sourced before, sets the folders

hex() { printf '%s' "$1" | od -An -v -tx1 | tr -d ' \n'; }
le32() { printf '%02x%02x%02x%02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255)); }

# BSON: one element each, and the frame of a document.
bson_int() { printf '10%s00%s' "$(hex "$1")" "$(le32 "$2")"; }
bson_text() { printf '02%s00%s%s00' "$(hex "$1")" "$(le32 $((${#2} + 1)))" "$(hex "$2")"; }
bson_document() { printf '03%s00%s' "$(hex "$1")" "$(bson_frame "$2")"; }
bson_array() { printf '04%s00%s' "$(hex "$1")" "$(bson_frame "$2")"; }
bson_frame() { printf '%s%s00' "$(le32 $((${#1} / 2 + 5)))" "$1"; }

# Sends one command (its elements) to the admin database, prints the reply's bytes in hex.
mongo_command() { # mongo_command PORT ELEMENTS
  local body length
  body=$(bson_frame "$2$(bson_text "\$db" admin)")
  # Header: length, request id, response to, opcode 2013; then flags and one section of kind 0.
  local message
  message=$(le32 $((${#body} / 2 + 21)))$(le32 1)$(le32 0)$(le32 2013)$(le32 0)00$body
  exec 4<>"/dev/tcp/127.0.0.1/$1" || return 1
  # shellcheck disable=SC2059 # the format is the message
  printf "$(escaped "$message")" >&4
  length=$(head -c 4 <&4 | od -An -v -tu1 | awk '{ print $1 + 256 * ($2 + 256 * ($3 + 256 * $4)) }')
  [[ -z $length ]] || head -c $((length - 4)) <&4 | od -An -v -tx1 | tr -d ' \n'
  exec 4>&-
}

# Hex digits as the escapes that printf turns into bytes.
# shellcheck disable=SC2001 # "every two" is beyond ${variable//}
escaped() { sed 's/../\\x&/g' <<<"$1"; }

# The readable characters of a reply, for an error message.
# shellcheck disable=SC2059 # the format is the reply
readable() { printf "$(escaped "$1")" | tr -c '[:print:]' ' '; }

mongo_hello() { mongo_command "$1" "$(bson_int hello 1)" 2>/dev/null; }

# Whether the server at this port is primary. True is a boolean element (08) with value 01.
mongo_is_primary() { [[ $(mongo_hello "$1") == *"08$(hex isWritablePrimary)0001"* ]]; }

# Whether it already belongs to a replica set.
mongo_is_initiated() { [[ $(mongo_hello "$1") == *"02$(hex setName)00"* ]]; }

mongo_initiate() { # mongo_initiate PORT SET
  local member reply
  member=$(bson_int _id 0)$(bson_text host "127.0.0.1:$1")
  reply=$(mongo_command "$1" "$(bson_document replSetInitiate \
    "$(bson_text _id "$2")$(bson_array members "$(bson_document 0 "$member")")")")
  mongo_said_ok "$reply" || {
    echo "replSetInitiate failed: $(readable "$reply")" >&2
    return 1
  }
}

# "ok" as the double 1.0.
mongo_said_ok() { [[ $1 == *"01$(hex ok)00000000000000f03f"* ]]; }

# Makes the first user. Until there is one, the server permits this to clients on its own host.
mongo_create_admin() { # mongo_create_admin PORT USER PASSWORD
  local reply
  reply=$(mongo_command "$1" "$(bson_text createUser "$2")$(bson_text pwd "$3")$(bson_array roles "$(bson_text 0 root)")")
  mongo_said_ok "$reply" || [[ $(readable "$reply") == *'requires authentication'* ]] || {
    echo "createUser failed: $(readable "$reply")" >&2
    return 1
  }
}
