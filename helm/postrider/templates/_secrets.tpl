{{/* secrets.keys or secrets.files with the default Secret filled in, as JSON: {"items": [{name, secret, key}]} */}}
{{- define "postrider.entries" -}}
{{- $items := list -}}
{{- range $name, $entry := .entries -}}
{{- $given := ternary (dict "key" $entry) $entry (kindIs "string" $entry) -}}
{{- $secret := default $.root.Values.secrets.existingSecret $given.secret -}}
{{- if not $secret -}}
{{- fail (printf "%s: no Secret is named; set secrets.existingSecret, or write {secret: NAME, key: %s}" (printf "%s.%s" $.of $name) $given.key) -}}
{{- end -}}
{{- $items = append $items (dict "name" $name "secret" $secret "key" $given.key) -}}
{{- end -}}
{{ dict "items" $items | toJson }}
{{- end }}

{{- define "postrider.secretKeys" -}}
{{ include "postrider.entries" (dict "root" . "entries" .Values.secrets.keys "of" "secrets.keys") }}
{{- end }}

{{- define "postrider.secretFiles" -}}
{{ include "postrider.entries" (dict "root" . "entries" .Values.secrets.files "of" "secrets.files") }}
{{- end }}

{{/* mongo.uri → POSTRIDER__MONGO__URI_FILE. Dots in the name of a librdkafka property become underscores. */}}
{{- define "postrider.fileVariable" -}}
{{- $property := regexFind "\\.properties\\..+$" . -}}
{{- $section := trimSuffix $property . | replace "." "__" -}}
{{- $property = $property | replace ".properties." "" | replace "." "_" -}}
{{- printf "POSTRIDER__%s%s_FILE" $section (ternary (printf "__PROPERTIES__%s" $property) "" (ne $property "")) | upper -}}
{{- end }}

{{/* An environment variable for each item. {items} */}}
{{- define "postrider.secretEnv" -}}
{{- range .items -}}
- name: {{ include "postrider.fileVariable" .name }}
  value: /etc/postrider/secrets/{{ .name }}
{{ end -}}
{{- end }}

{{/* A volume with a file for each item. {keys, files, mode} */}}
{{- define "postrider.secretVolume" -}}
- name: postrider-secrets
  projected:
    # {{ printf "0%o" (int .mode) }}
    defaultMode: {{ .mode }}
    sources:
      {{- range .keys }}
      - secret:
          name: {{ .secret | quote }}
          items: [{key: {{ .key | quote }}, path: {{ .name | quote }}}]
      {{- end }}
      {{- range .files }}
      - secret:
          name: {{ .secret | quote }}
          items: [{key: {{ .key | quote }}, path: {{ printf "files/%s" .name | quote }}}]
      {{- end }}
{{- end }}
