# Says who wrote, for a reader that believes mail.squidbot.internal; nobody else's word gets through.
#
# Every mail here was handed in by somebody who is logged in, and the envelope's sender is that login (main.cf).
# So the From field is proven if it is that one address, and only then.
require ["comparator-i;ascii-numeric", "editheader", "envelope", "relational", "variables"];

deleteheader "Authentication-Results";
deleteheader "ARC-Authentication-Results";

if envelope :matches "from" "*" {
  set "sender" "${1}";
}
if envelope :domain :matches "from" "*" {
  set :lower "domain" "${1}";
}
if allof (
  not string :is "${sender}" "",
  header :count "eq" :comparator "i;ascii-numeric" "from" "1",
  address :count "eq" :comparator "i;ascii-numeric" "from" "1",
  address :all :is "from" "${sender}"
) {
  addheader "Authentication-Results"
    "mail.squidbot.internal; auth=pass smtp.auth=${sender}; dmarc=pass header.from=${domain}";
}
