package coap

import (
	"cmp"
	"encoding/json"

	"github.com/lmosd/lmosd/interact/form"
)

// addKey puts the pre-shared key of a scheme into the target (TD 1.1 §5.3.3, PSKSecurityScheme). The identity is that of the
// credentials, else that of the description.
func addKey(all *form.Secrets, s *form.Scheme) error {
	if by := s.Form.Scheme(); by != "coaps" {
		return s.Errorf("add a form with an href that begins with coaps:", "requires a pre-shared key over %s, expected coaps", by)
	}
	err := all.AddLogin(s)
	var own struct{ Identity string }
	_ = json.Unmarshal(s.Raw, &own) // the identity is optional
	all.Login.Username = cmp.Or(all.Login.Username, own.Identity)
	return err
}
