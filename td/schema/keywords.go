package schema

// A keyword is a keyword of JSON Schema that the walker reads.
type keyword uint8

const (
	kwType keyword = iota
	kwConst
	kwEnum
	kwRef
	kwRequired
	kwProperties
	kwPropertyNames
	kwAdditionalProperties
	kwPatternProperties
	kwMinProperties
	kwMaxProperties
	kwItems
	kwAdditionalItems
	kwPrefixItems
	kwContains
	kwMinContains
	kwUniqueItems
	kwMinItems
	kwMaxItems
	kwMinLength
	kwMaxLength
	kwPattern
	kwFormat
	kwMinimum
	kwMaximum
	kwExclusiveMinimum
	kwExclusiveMaximum
	kwMultipleOf
	kwAllOf
	kwAnyOf
	kwOneOf
	kwNot
	kwIf
	kwThen
	kwElse
	keywordCount
)

var keywordNames = [keywordCount]string{
	kwType:                 "type",
	kwConst:                "const",
	kwEnum:                 "enum",
	kwRef:                  "$ref",
	kwRequired:             "required",
	kwProperties:           "properties",
	kwPropertyNames:        "propertyNames",
	kwAdditionalProperties: "additionalProperties",
	kwPatternProperties:    "patternProperties",
	kwMinProperties:        "minProperties",
	kwMaxProperties:        "maxProperties",
	kwItems:                "items",
	kwAdditionalItems:      "additionalItems",
	kwPrefixItems:          "prefixItems",
	kwContains:             "contains",
	kwMinContains:          "minContains",
	kwUniqueItems:          "uniqueItems",
	kwMinItems:             "minItems",
	kwMaxItems:             "maxItems",
	kwMinLength:            "minLength",
	kwMaxLength:            "maxLength",
	kwPattern:              "pattern",
	kwFormat:               "format",
	kwMinimum:              "minimum",
	kwMaximum:              "maximum",
	kwExclusiveMinimum:     "exclusiveMinimum",
	kwExclusiveMaximum:     "exclusiveMaximum",
	kwMultipleOf:           "multipleOf",
	kwAllOf:                "allOf",
	kwAnyOf:                "anyOf",
	kwOneOf:                "oneOf",
	kwNot:                  "not",
	kwIf:                   "if",
	kwThen:                 "then",
	kwElse:                 "else",
}

// A node is an object of a schema: as decoded JSON, or compiled.
type node struct {
	raw      map[string]any
	compiled *compiled
}

// A compiled is an object of a schema of lmosd. Reading a keyword takes no map access.
type compiled struct {
	values [keywordCount]any
	has    uint64 // bit set of the keywords
	count  int
	target *compiled // of $ref
}

// get returns the value of a keyword, and whether the object has it.
func (n node) get(k keyword) (any, bool) {
	if n.compiled != nil {
		return n.compiled.values[k], n.compiled.has&(1<<k) != 0
	}
	v, ok := n.raw[keywordNames[k]]
	return v, ok
}

// value returns the value of a keyword, or nil.
func (n node) value(k keyword) any {
	if n.compiled != nil {
		return n.compiled.values[k]
	}
	return n.raw[keywordNames[k]]
}

// len returns the number of keywords. Annotations in decoded JSON count, too.
func (n node) len() int {
	if n.compiled != nil {
		return n.compiled.count
	}
	return len(n.raw)
}

// Sets of the keywords that apply to one type of value, or to all.
const (
	forObjects = 1<<kwRequired | 1<<kwProperties | 1<<kwPropertyNames | 1<<kwAdditionalProperties | 1<<kwMinProperties | 1<<kwMaxProperties
	forArrays  = 1<<kwItems | 1<<kwPrefixItems | 1<<kwContains | 1<<kwUniqueItems | 1<<kwMinItems | 1<<kwMaxItems
	forText    = 1<<kwMinLength | 1<<kwMaxLength | 1<<kwPattern | 1<<kwFormat
	forNumbers = 1<<kwMinimum | 1<<kwMaximum | 1<<kwExclusiveMinimum | 1<<kwExclusiveMaximum | 1<<kwMultipleOf
	forAll     = 1<<kwAllOf | 1<<kwAnyOf | 1<<kwOneOf | 1<<kwNot | 1<<kwIf
)

// mayHave reports whether the object may have one of the keywords. It is exact for a compiled one.
func (n node) mayHave(keywords uint64) bool { return n.compiled == nil || n.compiled.has&keywords != 0 }

// compile returns the compiled form of a trusted schema. Its references lead to "$defs" of the whole schema.
func compile(schema any) any {
	var all []*compiled
	defs := map[string]*compiled{}
	whole := Rewrite(schema, func(part any) any {
		m, ok := part.(map[string]any)
		if !ok {
			return part
		}
		for name, def := range object(m["$defs"]) {
			defs["#/$defs/"+name] = def.(*compiled)
		}
		c := &compiled{}
		for k, name := range keywordNames {
			if v, ok := m[name]; ok {
				c.values[k], c.has, c.count = v, c.has|1<<k, c.count+1
			}
		}
		all = append(all, c)
		return c
	})
	for _, c := range all {
		if ref, ok := c.values[kwRef].(string); ok {
			c.target = defs[ref]
		}
	}
	return whole
}
