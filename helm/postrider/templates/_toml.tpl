{{/*
Values as TOML. Helm's own toToml writes 500 as 500.0, since every number of a values file is a float to it, and
Postrider refuses 500.0 for an integer.

A dictionary: {table, path}. Simple values first, then tables and lists of tables under their headers.
*/}}
{{- define "postrider.toml.table" -}}
{{- $path := .path -}}
{{- range $key, $value := .table -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value) (include "postrider.toml.isTables" $value)) }}
{{ include "postrider.toml.key" $key }} = {{ include "postrider.toml.value" $value }}
{{- end -}}
{{- end -}}
{{- range $key, $value := .table -}}
{{- $below := append $path (include "postrider.toml.key" $key) -}}
{{- if kindIs "map" $value }}

[{{ join "." $below }}]
{{- include "postrider.toml.table" (dict "table" $value "path" $below) -}}
{{- else if include "postrider.toml.isTables" $value -}}
{{- range $value }}

[[{{ join "." $below }}]]
{{- include "postrider.toml.table" (dict "table" . "path" $below) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether it is a list that contains only tables. An empty list is not. */}}
{{- define "postrider.toml.isTables" -}}
{{- if and (kindIs "slice" .) . -}}
{{- $tables := true -}}
{{- range . -}}{{- if not (kindIs "map" .) -}}{{- $tables = false -}}{{- end -}}{{- end -}}
{{- if $tables -}}yes{{- end -}}
{{- end -}}
{{- end }}

{{- define "postrider.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ include "postrider.toml.text" . }}{{ end -}}
{{- end }}

{{/*
A string with the escapes of JSON, which TOML has too. In addition it escapes DEL, which TOML requires, and U+0080 to
U+009F and U+FEFF, which the surrounding YAML requires.
*/}}
{{- define "postrider.toml.text" -}}
{{- $text := toRawJson . | replace "\ufeff" "\\ufeff" -}}
{{- range untilStep 127 160 1 -}}
{{- $text = $text | replace (printf "%c" .) (printf "\\u%04x" .) -}}
{{- end -}}
{{ $text }}
{{- end }}

{{- define "postrider.toml.value" -}}
{{- if kindIs "string" . -}}
{{ include "postrider.toml.text" . }}
{{- else if kindIs "bool" . -}}
{{ . }}
{{- else if kindIs "slice" . -}}
[{{ range $at, $item := . }}{{ if $at }}, {{ end }}{{ include "postrider.toml.value" $item }}{{ end }}]
{{- else if kindIs "map" . -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- $pairs = append $pairs (printf "%s = %s" (include "postrider.toml.key" $key) (include "postrider.toml.value" $value)) -}}
{{- end -}}
{ {{ join ", " $pairs }} }
{{- else if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ int64 . }}{{ else }}{{ toJson . }}{{ end -}}
{{- else if kindIs "invalid" . -}}
{{ fail "config: a list contains null; remove it" }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}
